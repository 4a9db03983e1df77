// The layout of a hot table in device memory, and the functions that its kernels share. NVRTC compiles it before the
// files with kernels; the tests compile the same text for a CPU, with their own two relaxed operations.
//
// A bucket has 128 cells. It is one piece of memory with a column for each property of its rows: digests, flags, keys,
// scores, steps, rows. One byte per cell is 0 (empty) or a digest of the hash, so every int64 is usable as a key. A
// chunk has a power of two of buckets; a table grows and shrinks by chunks, so its cells do not move.
//
// A key has one bucket: the low bits of its hash, as many as the highest bucket number has, without the top bit if
// there is no such bucket (linear hashing: Litwin, VLDB 1980). So a bucket that is added at the end takes its rows from
// one existing bucket, and the last bucket merges into one that stays. One warp does all the work in a bucket, so
// kernels that write need no locks. In a bucket, lane l has the cells 4 l to 4 l + 3, and no other lane accesses their
// digests, keys, scores, steps and flags.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

const int CELLS = 128;
#define ALL 0xffffffffu
const u8 DIRTY = 1;

const i64 FLAGS_AT = CELLS;
const i64 KEYS_AT = 2 * CELLS;
const i64 SCORES_AT = KEYS_AT + 8 * CELLS;
const i64 STEPS_AT = SCORES_AT + 8 * CELLS;
const i64 ROWS_AT = STEPS_AT + 8 * CELLS;

// Blocks have 256 threads. A processor runs three blocks at once, but two of a wide kernel (an optimizer's step, or sums
// that load far ahead), four of insert and six of find. With the registers that this leaves, none are spilled.
#define KERNEL extern "C" __global__ void __launch_bounds__(256, 3)
#define FIND_KERNEL extern "C" __global__ void __launch_bounds__(256, 6)
#define INSERT_KERNEL extern "C" __global__ void __launch_bounds__(256, 4)
#define WIDE_KERNEL extern "C" __global__ void __launch_bounds__(256, 2)

#ifndef CUDA_ON_CPU
// Accesses that other lanes may make at the same time; they order nothing (PTX: volatile is relaxed).
template <class A> __device__ A relaxed_load(const A* at) { return *(const volatile A*)at; }
template <class A> __device__ void relaxed_store(A* at, A value) { *(volatile A*)at = value; }
// An address that is read from memory could be one in shared memory, which would make every access slower.
#define ASSUME_GLOBAL(address) __builtin_assume(__isGlobal(address))
#endif

// The first parameters of every kernel on a table. words: 8-byte words of a row.
#define TABLE_PARAMETERS u8* const* chunks, i64 buckets, i64 chunk_shift, i64 words
#define TABLE (Table{chunks, buckets, chunk_shift, words})

struct Table {
  u8* const* chunks;
  i64 buckets, chunk_shift, words;

  __device__ u8* bucket(i64 number) const {
    const i64 within = number & (((i64)1 << chunk_shift) - 1);
    u8* bucket = chunks[number >> chunk_shift] + within * (ROWS_AT + 8 * words * CELLS);
    ASSUME_GLOBAL(bucket);
    return bucket;
  }
  __device__ u64* row(u8* bucket, i64 slot) const { return (u64*)(bucket + ROWS_AT) + slot * words; }
};

__device__ inline u8* digests(u8* bucket) { return bucket; }
__device__ inline u8* flags(u8* bucket) { return bucket + FLAGS_AT; }
__device__ inline i64* keys(u8* bucket) { return (i64*)(bucket + KEYS_AT); }
__device__ inline double* scores(u8* bucket) { return (double*)(bucket + SCORES_AT); }
__device__ inline i64* steps(u8* bucket) { return (i64*)(bucket + STEPS_AT); }

// Rows outside a table, as columns of `pitch` entries in one piece of memory; pitch is a multiple of 16.
struct Rows {
  u8* start;
  i64 pitch, words;

  __device__ i64* keys() const { return (i64*)start; }
  __device__ double* scores() const { return (double*)(start + 8 * pitch); }
  __device__ i64* steps() const { return (i64*)(start + 16 * pitch); }
  __device__ u64* row(i64 number) const { return (u64*)(start + 24 * pitch) + number * words; }
  __device__ u8* flags() const { return start + (24 + 8 * words) * pitch; }
};

// The number of a thread in its warp, and the numbers of warps and threads in a launch.
__device__ inline u32 lane_number() { return threadIdx.x & 31; }
__device__ inline i64 first_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline i64 all_threads() { return (i64)gridDim.x * blockDim.x; }
__device__ inline i64 first_warp() { return first_thread() >> 5; }
__device__ inline i64 all_warps() { return all_threads() >> 5; }

// MurmurHash3's 64-bit finaliser, the same as in kvemb.rows.hash_kernels.
__device__ inline u64 mix(i64 key) {
  u64 h = (u64)key;
  h ^= h >> 33;
  h *= 0xFF51AFD7ED558CCDull;
  h ^= h >> 33;
  h *= 0xC4CEB9FE1A85EC53ull;
  return h ^ h >> 33;
}

// One byte of the hash, not 0; independent of the bucket.
__device__ inline u32 digest_of(u64 h) {
  const u32 digest = (u32)(h >> 56);
  return digest ? digest : 1;
}

__device__ inline i64 bucket_of(u64 h, i64 buckets) {
  u64 mask = (u64)(buckets - 1);
  for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
  const u64 bucket = h & mask;
  return (i64)(bucket < (u64)buckets ? bucket : bucket & mask >> 1);
}

// The bucket that the last of `count` buckets was split from.
__device__ inline i64 split_from(i64 bucket) {
  i64 top = 1;
  while (2 * top <= bucket) top *= 2;
  return bucket - top;
}

// `order` sorts n cells. Returns the end of those, from `place` on, that equal the one there: it looks ahead ever
// further, then bisects, because a popular key has thousands.
__device__ inline i64 end_of_run(const i64* cells, const i64* order, i64 n, i64 place) {
  const i64 cell = cells[order[place]];
  i64 low = place + 1, step = 1;
  while (low + step <= n && cells[order[low + step - 1]] == cell) low += step, step *= 2;
  i64 high = low + step <= n ? low + step - 1 : n;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (cells[order[middle]] == cell) low = middle + 1;
    else high = middle;
  }
  return low;
}

// LANES adjacent lanes of a warp copy bytes between addresses that are multiples of `unit` bytes (1, 2, 4, 8, 16), as
// is the number of bytes. Lane l copies the units l, l + LANES and so on, so a lane reads from a row only what it wrote
// itself with the same unit. Two units are loaded before the first is stored.
template <int LANES, class Unit> __device__ inline void copy_units(u8* to, const u8* from, u32 count) {
#pragma unroll 1
  for (u32 at = lane_number() % LANES; at < count; at += 2 * LANES) {
    const u32 next = at + LANES;
    const Unit first = ((const Unit*)from)[at], second = ((const Unit*)from)[next < count ? next : at];
    ((Unit*)to)[at] = first;
    if (next < count) ((Unit*)to)[next] = second;
  }
}

template <int LANES = 32> __device__ inline void copy_bytes(u8* to, const u8* from, u32 bytes, u32 unit) {
  if (unit == 16) copy_units<LANES, uint4>(to, from, bytes / 16);
  else if (unit == 8) copy_units<LANES, u64>(to, from, bytes / 8);
  else if (unit == 4) copy_units<LANES, u32>(to, from, bytes / 4);
  else if (unit == 2) copy_units<LANES, unsigned short>(to, from, bytes / 2);
  else copy_units<LANES, u8>(to, from, bytes);
}

// A warp copies a whole row. Rows of an even number of words begin at multiples of 16 bytes.
__device__ inline void copy_row(u64* to, const u64* from, i64 words) {
  copy_bytes((u8*)to, (const u8*)from, 8 * (u32)words, words & 1 ? 8 : 16);
}
