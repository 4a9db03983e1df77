// Kernels that calculate with embeddings, except optimizers' steps. Value is the type of a stored element, Wide that of
// calculations and, for floats, of weights and divisors.

// Adds new - old, both (n, dim), to the embeddings of n cells. order sorts the cells, stably; a warp takes all entries
// of a cell, in their order.
KERNEL add(
    TABLE_PARAMETERS, const i64* cells, const i64* order, i64 n, const Value* old, const Value* newer, i64 dim,
    i64 step) {
  const Table table = TABLE;
  for (i64 head = first_warp(); head < n; head += all_warps()) {
    const i64 cell = cells[order[head]];
    if (cell < 0 || (head && cells[order[head - 1]] == cell)) continue;
    u8* bucket = table.bucket(cell / CELLS);
    Value* row = (Value*)table.row(bucket, cell % CELLS);
    for (i64 p = head; p < n && cells[order[p]] == cell; p++) {
      const i64 i = order[p];
      for (i64 j = lane_number(); j < dim; j += 32)
        narrow((Wide)(wide(row[j]) + (wide(newer[i * dim + j]) - wide(old[i * dim + j]))), &row[j]);
    }
    if (lane_number()) continue;
    steps(bucket)[cell % CELLS] = step;
    flags(bucket)[cell % CELLS] |= DIRTY;
  }
}

// Returns the row of a key, in its cell or beside the table; null if it has none.
__device__ inline const Value* row_of(
    const Table& table, const i64* cells, const i64* at, const Value* beside, i64 dim, i64 i) {
  if (at && at[i] >= 0) return beside + at[i] * dim;
  if (cells[i] < 0) return nullptr;
  return (const Value*)table.row(table.bucket(cells[i] / CELLS), cells[i] % CELLS);
}

// Sets scales to the factor of each of n keys' rows if its norm is above most_norm, else to NaN. One thread sums a
// row's squares in order.
KERNEL clip_scales(
    TABLE_PARAMETERS, const i64* cells, i64 n, const i64* at, const Value* beside, i64 dim, double most_norm,
    const Wide* weights, double* scales) {
  const Table table = TABLE;
  for (i64 i = first_thread(); i < n; i += all_threads()) {
    const Value* row = row_of(table, cells, at, beside, dim, i);
    double squares = 0.0;
    for (i64 j = 0; row && j < dim; j++) squares += (double)wide(row[j]) * (double)wide(row[j]);
    const double norm = sqrt(squares);
    scales[i] = norm > most_norm ? most_norm / norm * (weights ? (double)weights[i] : 1.0) : not_a_number();
  }
}

// Pools each bag's rows in order (kvemb.rows.bags): one warp per bag, one lane per element. weights, divisors, scales:
// null for none. Missing rows are skipped.
KERNEL pool(
    TABLE_PARAMETERS, const i64* cells, const i64* at, const Value* beside, i64 dim, const i64* offsets, i64 bags,
    const Wide* weights, const Wide* divisors, const double* scales, Value* out) {
  const Table table = TABLE;
  for (i64 bag = first_warp(); bag < bags; bag += all_warps()) {
    for (i64 j = lane_number(); j < dim; j += 32) {
      Wide total = 0;
      for (i64 i = offsets[bag]; i < offsets[bag + 1]; i++) {
        const Value* row = row_of(table, cells, at, beside, dim, i);
        if (!row) continue;
        const Wide element = wide(row[j]);
        if (scales && scales[i] == scales[i]) total = (Wide)(total + scales[i] * element);
        else if (weights) total = total + weights[i] * element;
        else total = total + element;
      }
      if (divisors) total = divisors[bag] != 0 ? total / divisors[bag] : 0;
      narrow(total, &out[bag * dim + j]);
    }
  }
}

// Sets out (m, dim) to each key's sum, in order, of weight * gradient / divisor over the bags of its occurrences
// (kvemb.rows.hashing.Sums). A warp processes 32 columns of a key. weights, divisors: null for none; with a divisor of
// 0 a gradient is 0.
KERNEL row_gradients(
    const i64* first, const i64* following, const i64* bag_of, i64 m, const Wide* weights, const Wide* divisors,
    const Wide* grads, i64 dim, Wide* out) {
  const i64 parts = (dim + 31) / 32;
  for (i64 part = first_warp(); part < m * parts; part += all_warps()) {
    const i64 key = part / parts, j = part % parts * 32 + lane_number();
    if (j >= dim) continue;
    Wide total = 0;
    bool begun = false;
    for (Chain chain(following, first[key]); chain.at[0] >= 0;) {
      const Chain now = chain;
      i64 bags[CHAIN];
      Wide each[CHAIN];
      for (int k = 0; k < CHAIN; k++)
        if (now.at[k] >= 0) bags[k] = bag_of[now.at[k]];
      for (int k = 0; k < CHAIN; k++)
        if (now.at[k] >= 0) each[k] = grads[bags[k] * dim + j];
      chain.next();
      for (int k = 0; k < CHAIN && now.at[k] >= 0; k++) {
        Wide gradient = each[k];
        if (divisors) gradient = divisors[bags[k]] != 0 ? gradient / divisors[bags[k]] : gradient * (Wide)0;
        if (weights) gradient = weights[now.at[k]] * gradient;
        total = begun ? total + gradient : gradient;
        begun = true;
      }
    }
    out[key * dim + j] = total;
  }
}
