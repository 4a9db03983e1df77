// Kernels that move rows between cells, in and out: insert with eviction, split, merge. One warp owns a bucket.

// Rows that leave, in any order. at: for each, the position in the batch of the row that replaced it.
struct Leaving {
  u64* count;
  Rows rows;
  i64* at;
};

// Returns an empty slot of a bucket, or -1, from the digests in the lanes.
__device__ inline int empty_slot(u32 mine) {
  const u32 empty = __vcmpeq4(mine, 0), having = __ballot_sync(ALL, empty != 0);
  if (!having) return -1;
  const int lane = __ffs(having) - 1;
  return lane * 4 + (__ffs(__shfl_sync(ALL, empty, lane)) - 1) / 8;
}

// 16 bytes, read by one load.
struct alignas(16) Two {
  double first, second;
};

// The scores of a bucket's cells, 4 in each lane. The lane that has a score sets it.
struct Scores {
  double held[4];

  __device__ static Scores of(u8* bucket) {
    const Two *from = (const Two*)scores(bucket) + 2 * lane_number(), low = from[0], high = from[1];
    return {{low.first, low.second, high.first, high.second}};
  }
  __device__ void set(int slot, double score) {
    for (int k = 0; k < 4; k++)
      if ((int)lane_number() * 4 + k == slot) held[k] = score;
  }
};

struct Victim {
  double score;
  int slot;
};

// Finds the row of a full bucket with the lowest score; of equal scores, the smallest key. Reads keys only then.
__device__ inline Victim lowest_score(u8* bucket, const Scores& scores) {
  const int first = (int)lane_number() * 4;
  double least = scores.held[0];
  for (int k = 1; k < 4; k++) least = scores.held[k] < least ? scores.held[k] : least;
  for (int other = 16; other; other >>= 1) {
    const double score = __shfl_xor_sync(ALL, least, other);
    least = score < least ? score : least;
  }
  u32 equal = 0;  // a bit for each of the lane's cells
  for (int k = 0; k < 4; k++) equal |= (u32)(scores.held[k] == least) << k;
  const u32 having = __ballot_sync(ALL, equal != 0), more = __ballot_sync(ALL, (equal & (equal - 1)) != 0);
  int slot = equal ? first + __ffs(equal) - 1 : -1;
  if (!more && !(having & (having - 1))) return {least, __shfl_sync(ALL, slot, __ffs(having) - 1)};
  i64 key = slot < 0 ? 0 : keys(bucket)[slot];
  for (int next = slot + 1; slot >= 0 && next < first + 4; next++)
    if (equal >> (next - first) & 1 && keys(bucket)[next] < key) key = keys(bucket)[slot = next];
  for (int other = 16; other; other >>= 1) {
    const i64 their_key = __shfl_xor_sync(ALL, key, other);
    const int their_slot = __shfl_xor_sync(ALL, slot, other);
    if (their_slot >= 0 && (slot < 0 || their_key < key)) key = their_key, slot = their_slot;
  }
  return {least, slot};
}

// Copies the row in a slot to `leaving`, for the row at `for_position` of a batch, if it is dirty or clean_too is set.
// Only the lane that owns the slot reads the columns that it alone writes.
__device__ inline void hand_out(
    const Table& table, u8* bucket, int slot, i64 for_position, bool clean_too, const Leaving& leaving) {
  const int owner = slot / 4;
  i64 place = -1;
  if ((int)lane_number() == owner && (clean_too || flags(bucket)[slot] & DIRTY)) {
    place = (i64)atomicAdd(leaving.count, (u64)1);
    leaving.rows.keys()[place] = keys(bucket)[slot];
    leaving.rows.scores()[place] = scores(bucket)[slot];
    leaving.rows.steps()[place] = steps(bucket)[slot];
    leaving.rows.flags()[place] = flags(bucket)[slot];
    leaving.at[place] = for_position;
  }
  place = __shfl_sync(ALL, place, owner);
  if (place >= 0) copy_row(leaving.rows.row(place), table.row(bucket, slot), table.words);
}

// Sets entries to numbers that sort n keys by bucket, and within a bucket by position in the batch. There are fewer
// than 2^31 buckets, because 2^31 would exceed the memory of any GPU, and fewer than 2^32 keys in a batch.
KERNEL bucket_entries(
    TABLE_PARAMETERS, const i64* wanted, i64 n, i64* entries) {
  for (i64 i = first_thread(); i < n; i += all_threads()) entries[i] = bucket_of(mix(wanted[i]), buckets) << 32 | i;
}

// Inserts n rows, whose keys are distinct and not in the table, by sorted entries; one warp per bucket. If a bucket is
// full and `evicting` is set, the lowest score is evicted, unless by_score keeps a clean new row out. clean_too:
// evicted clean rows are copied out, too. together: until the launch ends, new rows count as if their scores were
// infinite. If a bucket is full without `evicting`, the position of the row is written to pending[0] to
// pending[*pending_count - 1], in any order. fresh: how many cells were filled.
//
// By arithmetic for an H200, a full table of 64 M cells, rows of 64 floats and a batch of 1 M, 2.3 rows per bucket:
// - Bytes per key: sorting 8 + 8 passes of 16 + 8 = 144; its bucket 665 (1,280 read and 256 written, once for 2.3
//   keys); the new row 384 read and 352 written; the evicted row 320 read and 289 written: 2,160 with the key itself.
//   At 60% of 4.8 TB/s this gives 1.3 billion keys per second; with 12 kernel launches, 1.2.
// - Latency: a bucket takes 2.2 us (entry, columns, rows), and 1.3 us for each further key; with 64 registers 32 warps
//   fit a processor: 2.3 billion. The count of evicted rows is at one address, which takes 1.6 billion additions per
//   second.
INSERT_KERNEL insert(
    TABLE_PARAMETERS, const i64* entries, i64 n, u8* given, i64 pitch, i64 by_score, i64 evicting, i64 clean_too,
    i64 together, u64* fresh, u64* pending_count, i64* pending, u64* left, u8* left_rows, i64 left_pitch, i64* left_at) {
  const Table table = TABLE;
  const Rows rows = {given, pitch, words}, leaving = {left_rows, left_pitch, words};
  const u32 lane = lane_number();
  for (u32 head = (u32)first_warp(); head < n; head += (u32)all_warps()) {
    const u32 number = (u32)(entries[head] >> 32);
    if (head && (u32)(entries[head - 1] >> 32) == number) continue;
    u8* bucket = table.bucket(number);
    // Of the lane's 4 cells. Scores are read before they are needed, together with the digests.
    u32 mine = ((const u32*)digests(bucket))[lane], marks = ((const u32*)flags(bucket))[lane];
    Scores held = {};
    if (evicting) held = Scores::of(bucket);
    u32 taken = 0;
    for (u32 p = head; p < n && (u32)(entries[p] >> 32) == number; p++) {
      const u32 i = (u32)entries[p];
      const double score = rows.scores()[i];
      const u8 flag = rows.flags()[i];
      int slot = empty_slot(mine);
      bool leaves = false;
      double old_score = 0;
      if (slot >= 0) {
        taken++;
      } else if (!evicting) {
        if (lane == 0) pending[atomicAdd(pending_count, (u64)1)] = i;
        continue;
      } else {
        const Victim victim = lowest_score(bucket, held);
        if (by_score && !(flag & DIRTY) && victim.score >= score) continue;
        slot = victim.slot, old_score = victim.score;
        leaves = true;
      }
      u64* row = table.row(bucket, slot);
      const u64* newer = rows.row(i);
      // All loads are issued before the first result is needed.
      u64 out = 0, in = 0;
      if (lane < words) out = row[lane], in = newer[lane];
      const int shift = 8 * (slot & 3), owner = slot / 4;
      i64 place = -1, key = 0, step = 0, old_key = 0, old_step = 0;
      if ((int)lane == owner) {
        key = rows.keys()[i], step = rows.steps()[i];
        old_key = keys(bucket)[slot], old_step = steps(bucket)[slot];
        if (together) old_score = scores(bucket)[slot];
        if (leaves && (clean_too || marks >> shift & DIRTY)) place = (i64)atomicAdd(left, (u64)1);
      }
      const i64 to = __shfl_sync(ALL, place, owner);
      for (u32 at = lane; at < words;) {
        if (to >= 0) leaving.row(to)[at] = out;
        row[at] = in;
        if ((at += 32) < words) out = row[at], in = newer[at];
      }
      if (place >= 0) {
        leaving.keys()[place] = old_key;
        leaving.scores()[place] = old_score;
        leaving.steps()[place] = old_step;
        leaving.flags()[place] = (u8)(marks >> shift);
        left_at[place] = i;
      }
      if ((int)lane == owner) {
        keys(bucket)[slot] = key;
        scores(bucket)[slot] = score;
        steps(bucket)[slot] = step;
        mine = (mine & ~(255u << shift)) | digest_of(mix(key)) << shift;
        marks = (marks & ~(255u << shift)) | (u32)flag << shift;
        held.set(slot, together ? __longlong_as_double(0x7FF0000000000000ll) : score);
      }
    }
    ((u32*)digests(bucket))[lane] = mine;
    ((u32*)flags(bucket))[lane] = marks;
    if (lane == 0 && taken) atomicAdd(fresh, (u64)taken);
  }
}

// Moves to each of the last buckets, from `first` on, which are empty, its rows of the bucket that it splits. No bucket
// that is split is among them.
KERNEL split(TABLE_PARAMETERS, i64 first) {
  const Table table = TABLE;
  const u32 lane = lane_number();
  for (i64 number = first + first_warp(); number < buckets; number += all_warps()) {
    u8 *to = table.bucket(number), *from = table.bucket(split_from(number));
    u32 mine = ((const u32*)digests(from))[lane];
    int taken = 0;
    for (int byte = 0; byte < 4; byte++) {
      const int slot = (int)lane * 4 + byte;
      const bool moves =
          (mine >> 8 * byte & 255) && bucket_of(mix(keys(from)[slot]), number + 1) == number;
      u32 moving = __ballot_sync(ALL, moves);
      const int place = taken + __popc(moving & ((1u << lane) - 1));
      if (moves) {
        keys(to)[place] = keys(from)[slot];
        scores(to)[place] = scores(from)[slot];
        steps(to)[place] = steps(from)[slot];
        flags(to)[place] = flags(from)[slot];
        digests(to)[place] = (u8)(mine >> 8 * byte);
        flags(from)[slot] = 0;
        mine &= ~(255u << 8 * byte);
      }
      for (; moving; moving &= moving - 1)
        copy_row(table.row(to, taken++), table.row(from, (__ffs(moving) - 1) * 4 + byte), words);
    }
    ((u32*)digests(from))[lane] = mine;
  }
}

__device__ inline bool goes_before(double score, i64 key, double other_score, i64 other_key) {
  return score < other_score || (score == other_score && key < other_key);
}

// Moves the rows of the buckets from `last` on to the buckets that they were split from, none of which is among them.
// If there is no room for a row, it or a lower score there leaves. gone: how many rows left, clean ones included.
KERNEL merge(
    TABLE_PARAMETERS, i64 last, u64* gone, u64* left, u8* left_rows, i64 left_pitch, i64* left_at) {
  const Table table = TABLE;
  const Leaving leaving = {left, {left_rows, left_pitch, words}, left_at};
  const u32 lane = lane_number();
  for (i64 number = last + first_warp(); number < buckets; number += all_warps()) {
    u8 *from = table.bucket(number), *to = table.bucket(split_from(number));
    const u32 theirs = ((const u32*)digests(from))[lane];
    u32 mine = ((const u32*)digests(to))[lane];
    Scores held = Scores::of(to);
    u64 leave = 0;
    for (int source = 0; source < CELLS; source++) {
      const u32 digest = __shfl_sync(ALL, theirs, source / 4) >> 8 * (source & 3) & 255;
      if (!digest) continue;
      int slot = empty_slot(mine);
      const i64 position = number * CELLS + source;
      const double score = scores(from)[source];
      if (slot < 0) {
        leave++;
        const Victim victim = lowest_score(to, held);
        const i64 key = (int)lane == victim.slot / 4 ? keys(to)[victim.slot] : 0;
        if (goes_before(score, keys(from)[source], victim.score, __shfl_sync(ALL, key, victim.slot / 4))) {
          hand_out(table, from, source, position, false, leaving);
          continue;
        }
        slot = victim.slot;
        hand_out(table, to, slot, position, false, leaving);
      }
      copy_row(table.row(to, slot), table.row(from, source), words);
      if ((int)lane == slot / 4) {
        keys(to)[slot] = keys(from)[source];
        scores(to)[slot] = score;
        steps(to)[slot] = steps(from)[source];
        flags(to)[slot] = flags(from)[source];
        const int shift = 8 * (slot & 3);
        mine = (mine & ~(255u << shift)) | digest << shift;
      }
      held.set(slot, score);
    }
    ((u32*)digests(to))[lane] = mine;
    if (lane == 0 && leave) atomicAdd(gone, leave);
  }
}
