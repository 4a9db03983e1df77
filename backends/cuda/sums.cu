// Summing the gradients of cells that have several, before a step. Slot is the type of their elements.

// Of n cells (entries < 0 are skipped), cell i has the gradients entries[starts[i]] to entries[ends[i] - 1]. If there
// are several, their sum in this order is written to row sum_at[i] (null: i) of sums. A warp examines 32 cells, because
// most have one gradient, and sums 32 columns of a cell at a time.
KERNEL sum_gradients(
    const i64* cells, i64 n, const Slot* grads, const i64* entries, const i64* starts, const i64* ends, Slot* sums,
    const i64* sum_at, i64 dim, u64* many) {
  const u32 lane = lane_number();
  const i64 parts = (dim + 31) / 32;
  for (i64 task = first_warp(); task < (n + 31) / 32 * parts; task += all_warps()) {
    const i64 first = task / parts * 32, i = first + lane, j = task % parts * 32 + lane;
    i64 start = 0, end = 0;
    if (i < n && cells[i] >= 0) start = starts[i], end = ends[i];
    const bool later = end - start > MANY;
    if (later && j < 32) leave_for_later(many, i);
    for (u32 several = __ballot_sync(ALL, end - start > 1 && !later); several; several &= several - 1) {
      const int owner = __ffs(several) - 1;
      const i64 from = __shfl_sync(ALL, start, owner), to = __shfl_sync(ALL, end, owner);
      const Elements<Slot> of = {grads, dim, j};
      const Slot total = sum_of<32, AHEAD>(of, entries, from, to, j < dim, false, Slot());
      if (j < dim) sums[(sum_at ? sum_at[first + owner] : first + owner) * dim + j] = total;
    }
  }
}

// Sums those that it left.
WIDE_KERNEL sum_many_gradients(
    const Slot* grads, const i64* entries, const i64* starts, const i64* ends, Slot* sums, const i64* sum_at, i64 dim,
    const u64* many) {
  const i64 parts = (dim + NARROW - 1) / NARROW;
  for (i64 task = first_warp(); task < (i64)many[0] * parts; task += all_warps()) {
    const i64 i = (i64)many[1 + task / parts], j = task % parts * NARROW + lane_number() % NARROW;
    const Elements<Slot> of = {grads, dim, j};
    const Slot total = sum_of<NARROW, FAR_AHEAD>(of, entries, starts[i], ends[i], j < dim, false, Slot());
    if (j < dim && lane_number() < NARROW) sums[(sum_at ? sum_at[i] : i) * dim + j] = total;
  }
}
