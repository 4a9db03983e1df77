// Finding keys: a warp a key. Many keys may be equal, so what is written to a cell here is what every lane would write.

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
// found, in units of `unit` bytes. exists: null, or set to whether each key was found. rule: how a use is recorded (kvemb.restrict.ScoreRule), -1: not at all. The
// positions of keys that are not in the table go to missing[0] to missing[*misses - 1], in any order.
KERNEL find(
    TABLE_PARAMETERS, const i64* wanted, i64 n, const i64* at, i64* cells, u8* out, i64 bytes, i64 unit, u8* exists,
    i64 rule, double now, u64* misses, i64* missing) {
  const Table table = TABLE;
  const u32 lane = lane_number();
  for (i64 i = first_warp(); i < n; i += all_warps()) {
    if (at && at[i] >= 0) {
      if (lane == 0 && cells) cells[i] = -1;
      continue;
    }
    const u64 h = mix(wanted[i]);
    const i64 number = bucket_of(h, table.buckets);
    u8* bucket = table.bucket(number);
    const int slot = slot_of(bucket, wanted[i], h);
    if (slot >= 0 && out) copy_bytes(out + i * bytes, (const u8*)table.row(bucket, slot), bytes, unit);
    if (lane) continue;
    if (cells) cells[i] = slot < 0 ? -1 : number * CELLS + slot;
    if (exists) exists[i] = slot >= 0;
    if (slot < 0) {
      missing[atomicAdd(misses, (u64)1)] = i;
    } else if (rule >= 0) {
      if (rule == 0) relaxed_store(&scores(bucket)[slot], now);
      else count_use(&scores(bucket)[slot]);
      relaxed_store(&flags(bucket)[slot], (u8)(relaxed_load(&flags(bucket)[slot]) | DIRTY));
    }
  }
}

// Sets numbers to each key's bucket, by which a batch is sorted.
KERNEL bucket_numbers(
    TABLE_PARAMETERS, const i64* wanted, i64 n, i64* numbers) {
  for (i64 i = first_thread(); i < n; i += all_threads()) numbers[i] = bucket_of(mix(wanted[i]), buckets);
}
