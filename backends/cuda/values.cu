// Kernels that calculate with embeddings, except optimizers' steps. Value is the type of a stored element, Wide that of
// calculations and, for floats, of weights and divisors.

// The change of an element of a row, new - old, of rows (n, dim).
struct Differences {
  const Value *old, *newer;
  i64 dim, column;

  __device__ Wide operator()(i64 i) const { return wide(newer[i * dim + column]) - wide(old[i * dim + column]); }
  // Rounds as if each sum were stored.
  __device__ Wide add(Wide total, Wide next) const {
    Value stored;
    narrow((Wide)(total + next), &stored);
    return wide(stored);
  }
};

// Adds new - old, both (n, dim), to the embeddings of n cells. order sorts the cells, stably; a warp takes all entries
// of a cell, in their order.
KERNEL add(
    TABLE_PARAMETERS, const i64* cells, const i64* order, i64 n, const Value* old, const Value* newer, i64 dim,
    i64 step) {
  const Table table = TABLE;
  for (i64 head = first_warp(); head < n; head += all_warps()) {
    const i64 cell = cells[order[head]];
    if (cell < 0 || (head && cells[order[head - 1]] == cell)) continue;
    const i64 end = end_of_run(cells, order, n, head);
    u8* bucket = table.bucket(cell / CELLS);
    Value* row = (Value*)table.row(bucket, cell % CELLS);
    for (i64 first = 0; first < dim; first += 32) {
      const i64 j = first + lane_number();
      const Differences of = {old, newer, dim, j};
      const Wide before = j < dim ? wide(row[j]) : Wide(), after = sum_of<32, AHEAD>(of, order, head, end, j < dim, true, before);
      if (j < dim) narrow(after, &row[j]);
    }
    if (lane_number()) continue;
    steps(bucket)[cell % CELLS] = step;
    flags(bucket)[cell % CELLS] |= DIRTY;
  }
}
