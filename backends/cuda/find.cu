// Finding keys: a tile of 8 lanes per key. Keys may be equal, so all tiles of a key write the same to its cell. Uses
// are counted by atomic addition in memory, which takes a nanosecond each; with equal keys, a compare-and-swap loop
// would start again many times.
//
// Why a tile, by arithmetic for an H200 (4.8 TB/s, 132 processors) and rows of 64 floats:
// - Bytes: a key that is found moves 8 bytes of the key, 128 of digests, a sector of 32 with the cell's key, its row of
//   256 twice, and 8 of the cell's number: 688. At 60 to 70% of the bandwidth, which HierarchicalKV reaches on an A100,
//   this gives 4.2 to 4.9 billion keys per second.
// - Latency: a key waits for memory four times in sequence (key, digests, cell's key, row), 0.7 us each under load: 2.8
//   us. 40 registers leave room for 48 warps of 4 keys: 192 keys per processor, 9 billion per second. So bandwidth is
//   the limit. With one warp per key and 56 registers, there would be 32 keys: 1.5 billion. (Little's law: 4 billion
//   keys per second read 424 bytes each, so 9 KB per processor must be in flight; 192 keys have 20 KB.)
// - Instructions: about 300 per warp, 75 per key; 4 billion keys take a third of what 132 processors can issue.
// HierarchicalKV has as many loads in flight by a pipeline in shared memory; tiles need neither that nor its waits.

const int TILE = 8;

// The number of the tile's first lane in its warp.
__device__ inline u32 tile_start() { return lane_number() / TILE * TILE; }

// A tile finds a key in its bucket; returns its slot, or -1, in all lanes. looking: false: returns -1.
__device__ inline int slot_of(const u8* bucket, i64 key, u32 digest, bool looking) {
  const u32 lane = lane_number() % TILE, pattern = digest * 0x01010101u;
  u32 candidates = 0;  // one bit for each of the lane's 16 cells
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

// Finds n keys. at: null, or for each key a number, at least 0 if the key is to be skipped. cells: null, or set to each
// key's cell, -1 if it has none or was skipped. out: null, or rows of `bytes` bytes, set to the embeddings found, in
// units of `unit` bytes. exists: null, or set to whether each key was found. rule: how a use is recorded
// (kvemb.restrict.ScoreRule), -1: not at all. counts: null, or how many uses of each key COUNT records. The positions of
// keys that are not in the table are written to missing[0] to missing[*misses - 1], in any order.
FIND_KERNEL find(
    TABLE_PARAMETERS, const i64* wanted, i64 n, const i64* at, i64* cells, u8* out, i64 bytes, i64 unit, u8* exists,
    i64 rule, double now, const i64* counts, u64* misses, i64* missing) {
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
    if (lost) {  // one addition for all misses of a warp
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
      double* score = &scores(bucket)[slot];
      if (rule != 0) atomicAdd(score, counts ? (double)counts[i] : 1.0);  // the sum is the same in any order
      else if (relaxed_load(score) < now) relaxed_store(score, now);
      relaxed_store(&flags(bucket)[slot], (u8)(relaxed_load(&flags(bucket)[slot]) | DIRTY));
    }
  }
}
