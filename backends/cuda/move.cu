// What moves rows between cells, or in and out: insert with eviction, split, merge. One warp owns a bucket.

// Rows that leave: in `rows`, each with its place in the batch `at` that it left for, in any order.
struct Leaving {
  u64* count;
  Rows rows;
  i64* at;
};

// An empty slot of a bucket, by the digests that the lanes have of it, or -1.
__device__ inline int empty_slot(u32 mine) {
  const u32 empty = __vcmpeq4(mine, 0), having = __ballot_sync(ALL, empty != 0);
  if (!having) return -1;
  const int lane = __ffs(having) - 1;
  return lane * 4 + (__ffs(__shfl_sync(ALL, empty, lane)) - 1) / 8;
}

struct Victim {
  double score;
  i64 key;
  int slot;
};

__device__ inline bool goes_before(double score, i64 key, double other_score, i64 other_key) {
  return score < other_score || (score == other_score && key < other_key);
}

// The row of a full bucket with the lowest score, of equal scores the smallest key.
__device__ inline Victim lowest_score(u8* bucket) {
  const int first = (int)lane_number() * 4;
  Victim least = {scores(bucket)[first], keys(bucket)[first], first};
  for (int slot = first + 1; slot < first + 4; slot++) {
    const double score = scores(bucket)[slot];
    const i64 key = keys(bucket)[slot];
    if (goes_before(score, key, least.score, least.key)) least = {score, key, slot};
  }
  for (int other = 16; other; other >>= 1) {
    const double score = __shfl_xor_sync(ALL, least.score, other);
    const i64 key = __shfl_xor_sync(ALL, least.key, other);
    const int slot = __shfl_xor_sync(ALL, least.slot, other);
    if (goes_before(score, key, least.score, least.key)) least = {score, key, slot};
  }
  return least;
}

// Hands out the row in a slot, for the row at `for_position` of a batch, if it is dirty, or in any case with clean_too.
// The lane that owns the slot reads what it alone writes.
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

// Inserts n rows, sorted by bucket with `order`, whose keys are distinct and not in the table. If a bucket is full and
// `evicting` is set, the lowest score leaves, unless by_score keeps a clean newcomer out; clean_too: clean rows that
// leave are handed out too. If a bucket is full without `evicting`, the position of the row goes to pending[0] to
// pending[*pending_count - 1], in any order. fresh: how many cells were taken.
KERNEL insert(
    TABLE_PARAMETERS, const i64* order, const i64* numbers, i64 n, u8* given, i64 pitch, i64 by_score, i64 evicting,
    i64 clean_too, u64* fresh, u64* pending_count, i64* pending, u64* left, u8* left_rows, i64 left_pitch, i64* left_at) {
  const Table table = TABLE;
  const Rows rows = {given, pitch, words};
  const Leaving leaving = {left, {left_rows, left_pitch, words}, left_at};
  const u32 lane = lane_number();
  for (i64 head = first_warp(); head < n; head += all_warps()) {
    const i64 number = numbers[order[head]];
    if (head && numbers[order[head - 1]] == number) continue;
    u8* bucket = table.bucket(number);
    u32 mine = ((const u32*)digests(bucket))[lane];
    u64 taken = 0;
    for (i64 p = head; p < n; p++) {
      const i64 i = order[p];
      if (numbers[i] != number) break;
      int slot = empty_slot(mine);
      if (slot >= 0) {
        taken++;
      } else if (!evicting) {
        if (lane == 0) pending[atomicAdd(pending_count, (u64)1)] = i;
        continue;
      } else {
        const Victim victim = lowest_score(bucket);
        if (by_score && !(rows.flags()[i] & DIRTY) && victim.score >= rows.scores()[i]) continue;
        slot = victim.slot;
        hand_out(table, bucket, slot, i, clean_too != 0, leaving);
      }
      copy_row(table.row(bucket, slot), rows.row(i), words);
      if ((int)lane == slot / 4) {
        keys(bucket)[slot] = rows.keys()[i];
        scores(bucket)[slot] = rows.scores()[i];
        steps(bucket)[slot] = rows.steps()[i];
        flags(bucket)[slot] = rows.flags()[i];
        const int shift = 8 * (slot & 3);
        mine = (mine & ~(255u << shift)) | digest_of(mix(rows.keys()[i])) << shift;
      }
    }
    ((u32*)digests(bucket))[lane] = mine;
    if (lane == 0 && taken) atomicAdd(fresh, taken);
  }
}

// Gives each of the buckets from `first` on, which are empty and the last ones, its rows of the bucket that it splits.
// No bucket that is split is among them.
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

// Empties the buckets from `last` on into those that they were split from, none of which is among them. A row for which
// there is no room leaves, or the lowest score there if that is lower. gone: how many left, clean ones included.
KERNEL merge(
    TABLE_PARAMETERS, i64 last, u64* gone, u64* left, u8* left_rows, i64 left_pitch, i64* left_at) {
  const Table table = TABLE;
  const Leaving leaving = {left, {left_rows, left_pitch, words}, left_at};
  const u32 lane = lane_number();
  for (i64 number = last + first_warp(); number < buckets; number += all_warps()) {
    u8 *from = table.bucket(number), *to = table.bucket(split_from(number));
    const u32 theirs = ((const u32*)digests(from))[lane];
    u32 mine = ((const u32*)digests(to))[lane];
    u64 leave = 0;
    for (int source = 0; source < CELLS; source++) {
      const u32 digest = __shfl_sync(ALL, theirs, source / 4) >> 8 * (source & 3) & 255;
      if (!digest) continue;
      int slot = empty_slot(mine);
      const i64 position = number * CELLS + source;
      if (slot < 0) {
        leave++;
        const Victim victim = lowest_score(to);
        if (goes_before(scores(from)[source], keys(from)[source], victim.score, victim.key)) {
          hand_out(table, from, source, position, false, leaving);
          continue;
        }
        slot = victim.slot;
        hand_out(table, to, slot, position, false, leaving);
      }
      copy_row(table.row(to, slot), table.row(from, source), words);
      if ((int)lane == slot / 4) {
        keys(to)[slot] = keys(from)[source];
        scores(to)[slot] = scores(from)[source];
        steps(to)[slot] = steps(from)[source];
        flags(to)[slot] = flags(from)[source];
        const int shift = 8 * (slot & 3);
        mine = (mine & ~(255u << shift)) | digest << shift;
      }
    }
    ((u32*)digests(to))[lane] = mine;
    if (lane == 0 && leave) atomicAdd(gone, leave);
  }
}
