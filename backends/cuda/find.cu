// Finding keys: a tile of 8 lanes a key. Many keys may be equal, so what is written to a cell here is what every tile
// would write.
//
// Why a tile, by arithmetic for an H200 (4.8 TB/s, 132 processors) and rows of 64 floats:
// - Bytes: a key that is found moves 8 of the key, 128 of digests, a sector of 32 with the cell's key, its row of 256 twice
//   and 8 of the cell's number: 688. 60 to 70% of the bandwidth, as HierarchicalKV has on an A100, are 4.2 to 4.9 billion
//   keys a second.
// - Waits: a key waits for memory four times in turn (key, digests, cell's key, row), 0.7 us each under load: 2.8 us. 40
//   registers leave room for 48 warps of 4 keys: 192 keys a processor, 9 billion a second. So bandwidth is the limit. A
//   warp a key, with 56 registers, would have 32 keys: 1.5 billion. (Little's law: 4 billion keys a second read 424 bytes
//   each, so 9 KB a processor must be under way; 192 keys have 20 KB.)
// - Instructions: about 300 a warp, 75 a key; 4 billion keys take a third of what 132 processors can issue.
// HierarchicalKV has as many loads under way by a pipeline in shared memory; tiles need no shared memory and no waits.

const int TILE = 8;

// The place of a tile's first lane in its warp.
__device__ inline u32 tile_start() { return lane_number() / TILE * TILE; }

// A tile finds a key in its bucket: the slot, or -1. All its lanes get it. looking: whether it does; if not, -1.
__device__ inline int slot_of(const u8* bucket, i64 key, u32 digest, bool looking) {
  const u32 lane = lane_number() % TILE, pattern = digest * 0x01010101u;
  u32 candidates = 0;  // of the lane's 16 cells, one bit each
  if (looking) {
    const uint4 of = ((const uint4*)bucket)[lane];
    const u32 low = (__vcmpeq4(of.x, pattern) & 0x08040201u) | (__vcmpeq4(of.y, pattern) & 0x80402010u);
    const u32 high = (__vcmpeq4(of.z, pattern) & 0x08040201u) | (__vcmpeq4(of.w, pattern) & 0x80402010u);
    candidates = (low * 0x01010101u >> 24) | (high * 0x01010101u >> 24) << 8;
  }
  int slot = -1;
  for (; candidates && slot < 0; candidates &= candidates - 1) {
    const int candidate = (int)lane * 16 + __ffs(candidates) - 1;
    if (((const i64*)(bucket + KEYS_AT))[candidate] == key) slot = candidate;
  }
  const u32 found = __ballot_sync(ALL, slot >= 0) >> tile_start() & ((1u << TILE) - 1);
  slot = __shfl_sync(ALL, slot, tile_start() + (found ? __ffs(found) - 1 : 0));
  return slot;
}

// Adds 1 as often as it is called for a score, by whichever lanes.
__device__ inline void count_use(double* score) {
  u64 seen = relaxed_load((u64*)score), expected;
  do {
    expected = seen;
    seen = atomicCAS((u64*)score, expected, (u64)__double_as_longlong(__longlong_as_double((i64)expected) + 1.0));
  } while (seen != expected);
}

// Finds n keys. at: null, or for each key a number of at least 0 if it is not to be looked for. cells: null, or set to
// each key's cell, -1 if it has none or was not looked for. out: null, or rows of `bytes` bytes, set to the embeddings
// found, in units of `unit` bytes. exists: null, or set to whether each key was found. rule: how a use is recorded
// (kvemb.restrict.ScoreRule), -1: not at all. The positions of keys that are not in the table go to missing[0] to
// missing[*misses - 1], in any order.
FIND_KERNEL find(
    TABLE_PARAMETERS, const i64* wanted, i64 n, const i64* at, i64* cells, u8* out, i64 bytes, i64 unit, u8* exists,
    i64 rule, double now, u64* misses, i64* missing) {
  const Table table = TABLE;
  const int tiles = 32 / TILE;
  for (i64 start = first_warp() * tiles; start < n; start += all_warps() * tiles) {
    const i64 i = start + lane_number() / TILE;
    const bool given = i < n, looking = given && !(at && at[i] >= 0);
    const i64 key = looking ? wanted[i] : 0;
    const u64 h = mix(key);
    const i64 number = bucket_of(h, table.buckets);
    u8* bucket = table.bucket(number);
    const int slot = slot_of(bucket, key, digest_of(h), looking);
    if (slot >= 0 && out) copy_bytes<TILE>(out + i * bytes, (const u8*)table.row(bucket, slot), (u32)bytes, (u32)unit);
    const bool leads = lane_number() == tile_start();  // one lane of a tile does the rest
    const u32 lost = __ballot_sync(ALL, leads && looking && slot < 0);
    if (lost) {  // one addition for all that a warp misses
      const int first = __ffs(lost) - 1;
      u64 place = 0;
      if ((int)lane_number() == first) place = atomicAdd(misses, (u64)__popc(lost));
      place = __shfl_sync(ALL, place, first);
      if (lost >> lane_number() & 1) missing[place + __popc(lost & ((1u << lane_number()) - 1))] = i;
    }
    if (!leads || !given) continue;
    if (cells) cells[i] = slot < 0 ? -1 : number * CELLS + slot;
    if (!looking) continue;
    if (exists) exists[i] = slot >= 0;
    if (slot >= 0 && rule >= 0) {
      if (rule == 0) relaxed_store(&scores(bucket)[slot], now);
      else count_use(&scores(bucket)[slot]);
      relaxed_store(&flags(bucket)[slot], (u8)(relaxed_load(&flags(bucket)[slot]) | DIRTY));
    }
  }
}
