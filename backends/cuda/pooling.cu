// Kernels that pool the rows of bags, of float embeddings. Value and Wide are those of values.cu.

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
// null for none. Missing rows are skipped. AHEAD rows are loaded before the first of them is added.
KERNEL pool(
    TABLE_PARAMETERS, const i64* cells, const i64* at, const Value* beside, i64 dim, const i64* offsets, i64 bags,
    const Wide* weights, const Wide* divisors, const double* scales, Value* out) {
  const Table table = TABLE;
  for (i64 bag = first_warp(); bag < bags; bag += all_warps()) {
    const i64 end = offsets[bag + 1];
    for (i64 j = lane_number(); j < dim; j += 32) {
      Wide total = 0;
      for (i64 start = offsets[bag]; start < end; start += AHEAD) {
        const Value* rows[AHEAD];
        Value each[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
          rows[k] = start + k < end ? row_of(table, cells, at, beside, dim, start + k) : nullptr;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
          if (rows[k]) each[k] = rows[k][j];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
          if (!rows[k]) continue;
          const i64 i = start + k;
          const Wide element = wide(each[k]);
          if (scales && scales[i] == scales[i]) total = (Wide)(total + scales[i] * element);
          else if (weights) total = total + weights[i] * element;
          else total = total + element;
        }
      }
      if (divisors) total = divisors[bag] != 0 ? total / divisors[bag] : 0;
      narrow(total, &out[bag * dim + j]);
    }
  }
}

// The shares of a key's gradient in one column: weight * gradient / divisor of the bag of an occurrence. weights,
// divisors: null for none; with a divisor of 0 a gradient is 0.
struct Shares {
  const i64* bag_of;
  const Wide *weights, *divisors, *grads;
  i64 dim, column;

  __device__ Wide operator()(i64 i) const {
    const i64 bag = bag_of[i];
    Wide gradient = grads[bag * dim + column];
    if (divisors) gradient = divisors[bag] != 0 ? gradient / divisors[bag] : gradient * (Wide)0;
    return weights ? weights[i] * gradient : gradient;
  }
  __device__ Wide add(Wide total, Wide next) const { return total + next; }
};

// Sets out (m, dim) to each key's sum, in order, of the shares of its occurrences, entries[starts[key]] to
// entries[ends[key] - 1]. A warp processes 32 columns of a key.
KERNEL row_gradients(
    const i64* entries, const i64* starts, const i64* ends, const i64* bag_of, i64 m, const Wide* weights,
    const Wide* divisors, const Wide* grads, i64 dim, Wide* out, u64* many) {
  const i64 parts = (dim + 31) / 32;
  for (i64 part = first_warp(); part < m * parts; part += all_warps()) {
    const i64 key = part / parts, j = part % parts * 32 + lane_number(), start = starts[key], end = ends[key];
    if (end - start > MANY) {
      if (j == 0) leave_for_later(many, key);
      continue;
    }
    const Shares of = {bag_of, weights, divisors, grads, dim, j};
    const Wide total = sum_of<32, AHEAD>(of, entries, start, end, j < dim, false, Wide());
    if (j < dim) out[key * dim + j] = total;
  }
}

// Does it for those that it left.
WIDE_KERNEL many_row_gradients(
    const i64* entries, const i64* starts, const i64* ends, const i64* bag_of, const Wide* weights,
    const Wide* divisors, const Wide* grads, i64 dim, Wide* out, const u64* many) {
  const i64 parts = (dim + NARROW - 1) / NARROW;
  for (i64 part = first_warp(); part < (i64)many[0] * parts; part += all_warps()) {
    const i64 key = (i64)many[1 + part / parts], j = part % parts * NARROW + lane_number() % NARROW;
    const Shares of = {bag_of, weights, divisors, grads, dim, j};
    const Wide total = sum_of<NARROW, FAR_AHEAD>(of, entries, starts[key], ends[key], j < dim, false, Wide());
    if (j < dim && lane_number() < NARROW) out[key * dim + j] = total;
  }
}
