// Reading and writing rows, scores and flags by cell, and of whole buckets.

struct Cell {
  u8* bucket;
  i64 slot;
};

__device__ inline Cell cell_at(const Table& table, i64 cell) { return {table.bucket(cell / CELLS), cell % CELLS}; }

// Copies out the rows of n cells, which are all in use; one warp per row.
KERNEL read_rows(
    TABLE_PARAMETERS, const i64* cells, i64 n, u8* out, i64 pitch) {
  const Table table = TABLE;
  const Rows rows = {out, pitch, words};
  for (i64 i = first_warp(); i < n; i += all_warps()) {
    const Cell cell = cell_at(table, cells[i]);
    copy_row(rows.row(i), table.row(cell.bucket, cell.slot), words);
    if (lane_number()) continue;
    rows.keys()[i] = keys(cell.bucket)[cell.slot];
    rows.scores()[i] = scores(cell.bucket)[cell.slot];
    rows.steps()[i] = steps(cell.bucket)[cell.slot];
    rows.flags()[i] = flags(cell.bucket)[cell.slot];
  }
}

// Overwrites the rows of n distinct cells, which are all in use, with rows of the same keys; one warp per row.
KERNEL put_rows(
    TABLE_PARAMETERS, const i64* cells, i64 n, u8* given, i64 pitch) {
  const Table table = TABLE;
  const Rows rows = {given, pitch, words};
  for (i64 i = first_warp(); i < n; i += all_warps()) {
    const Cell cell = cell_at(table, cells[i]);
    copy_row(table.row(cell.bucket, cell.slot), rows.row(i), words);
    if (lane_number()) continue;
    scores(cell.bucket)[cell.slot] = rows.scores()[i];
    steps(cell.bucket)[cell.slot] = rows.steps()[i];
    flags(cell.bucket)[cell.slot] = rows.flags()[i];
  }
}

// Copies the embeddings of n cells to rows of `bytes` bytes; entries < 0 are skipped.
KERNEL gather(
    TABLE_PARAMETERS, const i64* cells, i64 n, u8* out, i64 bytes, i64 unit) {
  const Table table = TABLE;
  for (i64 i = first_warp(); i < n; i += all_warps()) {
    if (cells[i] < 0) continue;
    const Cell cell = cell_at(table, cells[i]);
    copy_bytes(out + i * bytes, (const u8*)table.row(cell.bucket, cell.slot), (u32)bytes, (u32)unit);
  }
}

// Sets embeddings to rows of `bytes` bytes. order sorts the n cells stably; of equal cells, the last row is written.
KERNEL assign(
    TABLE_PARAMETERS, const i64* cells, const i64* order, i64 n, const u8* given, i64 bytes, i64 unit, i64 step) {
  const Table table = TABLE;
  for (i64 p = first_warp(); p < n; p += all_warps()) {
    const i64 i = order[p];
    if (cells[i] < 0 || (p + 1 < n && cells[order[p + 1]] == cells[i])) continue;
    const Cell cell = cell_at(table, cells[i]);
    copy_bytes((u8*)table.row(cell.bucket, cell.slot), given + i * bytes, (u32)bytes, (u32)unit);
    if (lane_number()) continue;
    steps(cell.bucket)[cell.slot] = step;
    flags(cell.bucket)[cell.slot] |= DIRTY;
  }
}

// Copies the keys, scores and flags of n cells, which are all in use, to the outputs that are not null.
KERNEL read_columns(
    TABLE_PARAMETERS, const i64* cells, i64 n, i64* out_keys, double* out_scores, u8* out_flags) {
  const Table table = TABLE;
  for (i64 i = first_thread(); i < n; i += all_threads()) {
    const Cell cell = cell_at(table, cells[i]);
    if (out_keys) out_keys[i] = keys(cell.bucket)[cell.slot];
    if (out_scores) out_scores[i] = scores(cell.bucket)[cell.slot];
    if (out_flags) out_flags[i] = flags(cell.bucket)[cell.slot];
  }
}

// Sets the scores of n distinct cells; the rows become dirty. Entries < 0 are skipped.
KERNEL put_scores(
    TABLE_PARAMETERS, const i64* cells, i64 n, const double* given) {
  const Table table = TABLE;
  for (i64 i = first_thread(); i < n; i += all_threads()) {
    if (cells[i] < 0) continue;
    const Cell cell = cell_at(table, cells[i]);
    scores(cell.bucket)[cell.slot] = given[i];
    flags(cell.bucket)[cell.slot] |= DIRTY;
  }
}

// Where the flags of n cells have one of the bits `where`: clears all bits but `keep`, then sets the bits `more`.
KERNEL change_flags(
    TABLE_PARAMETERS, const i64* cells, i64 n, i64 where, i64 keep, i64 more) {
  const Table table = TABLE;
  for (i64 i = first_thread(); i < n; i += all_threads()) {
    const Cell cell = cell_at(table, cells[i]);
    u8* place = &flags(cell.bucket)[cell.slot];
    const u8 flag = relaxed_load(place);
    if (flag & where) relaxed_store(place, (u8)((flag & keep) | more));
  }
}

// Does the same for the flags of every cell.
KERNEL change_all_flags(TABLE_PARAMETERS, i64 where, i64 keep, i64 more) {
  const Table table = TABLE;
  for (i64 cell = first_thread(); cell < buckets * CELLS; cell += all_threads()) {
    u8* flag = &flags(table.bucket(cell / CELLS))[cell % CELLS];
    if (*flag & where) *flag = (u8)((*flag & keep) | more);
  }
}

// Empties n distinct cells, and counts those that were in use.
KERNEL remove_cells(
    TABLE_PARAMETERS, const i64* cells, i64 n, u64* used) {
  const Table table = TABLE;
  for (i64 i = first_thread(); i < n; i += all_threads()) {
    const Cell cell = cell_at(table, cells[i]);
    if (digests(cell.bucket)[cell.slot]) atomicAdd(used, (u64)1);
    digests(cell.bucket)[cell.slot] = 0;
    flags(cell.bucket)[cell.slot] = 0;
  }
}

// Empties the buckets from `first` on, whatever their memory contains.
KERNEL clear(TABLE_PARAMETERS, i64 first) {
  const Table table = TABLE;
  for (i64 cell = first * CELLS + first_thread(); cell < buckets * CELLS; cell += all_threads()) {
    u8* bucket = table.bucket(cell / CELLS);
    digests(bucket)[cell % CELLS] = 0;
    flags(bucket)[cell % CELLS] = 0;
  }
}

// Copies the digests or the flags (column 0 or 1) of `count` buckets from `first` on to out.
KERNEL read_bytes(
    TABLE_PARAMETERS, i64 first, i64 count, i64 column, u8* out) {
  const Table table = TABLE;
  for (i64 at = first_thread(); at < count * CELLS; at += all_threads())
    out[at] = table.bucket(first + at / CELLS)[column * CELLS + at % CELLS];
}
