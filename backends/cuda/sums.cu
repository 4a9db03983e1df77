// Summing the gradients of cells that have several, before a step. Slot is the type of their elements.

// Of n cells (entries < 0 are skipped), cell i has the gradients at first[i] (null: i) and along the chain from there.
// If there are several, their sum in this order is written to row sum_at[i] (null: i) of sums. A warp examines 32
// cells, because most have one gradient, and sums 32 columns of a cell at a time.
KERNEL sum_gradients(
    const i64* cells, i64 n, const Slot* grads, const i64* first, const i64* following, Slot* sums, const i64* sum_at,
    i64 dim) {
  const u32 lane = lane_number();
  const i64 parts = (dim + 31) / 32;
  for (i64 task = first_warp(); task < (n + 31) / 32 * parts; task += all_warps()) {
    const i64 start = task / parts * 32, i = start + lane, j = task % parts * 32 + lane;
    i64 at = -1, next = -1;
    if (i < n && cells[i] >= 0) {
      at = first ? first[i] : i;
      next = following[at];
    }
    for (u32 several = __ballot_sync(ALL, next >= 0); several; several &= several - 1) {
      const int owner = __ffs(several) - 1;
      const i64 head = __shfl_sync(ALL, at, owner), second = __shfl_sync(ALL, next, owner);
      if (j >= dim) continue;
      Slot total = grads[head * dim + j];
      for (Chain chain(following, second); chain.at[0] >= 0;) {
        const Chain now = chain;
        Slot each[CHAIN];
        for (int k = 0; k < CHAIN; k++)
          if (now.at[k] >= 0) each[k] = grads[now.at[k] * dim + j];
        chain.next();
        for (int k = 0; k < CHAIN; k++)
          if (now.at[k] >= 0) total = total + each[k];
      }
      sums[(sum_at ? sum_at[start + owner] : start + owner) * dim + j] = total;
    }
  }
}
