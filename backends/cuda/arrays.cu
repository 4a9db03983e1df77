// Kernels on callers' arrays in device memory, without cells: rows by position, keys of another width, and groups of
// entries that have the same cell.

// Copies rows of `bytes` bytes, in units of `unit`, from the positions `chosen` of `from` to the n rows of `to`.
KERNEL take_rows(const u8* from, const i64* chosen, i64 n, i64 bytes, i64 unit, u8* to) {
  for (i64 i = first_warp(); i < n; i += all_warps())
    copy_bytes(to + i * bytes, from + chosen[i] * bytes, (u32)bytes, (u32)unit);
}

// The reverse: copies row i of the n rows of `from` to position chosen[i] of `to`. Positions are distinct.
KERNEL spread_rows(const u8* from, const i64* chosen, i64 n, i64 bytes, i64 unit, u8* to) {
  for (i64 i = first_warp(); i < n; i += all_warps())
    copy_bytes(to + chosen[i] * bytes, from + i * bytes, (u32)bytes, (u32)unit);
}

// Converts keys of 4 bytes to keys of 8 bytes.
KERNEL widen_keys(const int* given, i64 n, i64* wide_keys) {
  for (i64 i = first_thread(); i < n; i += all_threads()) wide_keys[i] = given[i];
}

// Sets cells to -1 where `without` is 0.
KERNEL leave_out(i64* cells, i64 n, const u8* without) {
  for (i64 i = first_thread(); i < n; i += all_threads())
    if (!without[i]) cells[i] = -1;
}

// Groups the entries of n cells, which `order` sorts stably. heads[i] is cells[i] if i is the first entry of its cell,
// else -1. Of such an i, order[starts[i]] to order[ends[i] - 1] are the entries of the cell, and sum_at[i] is the
// position of the sum over them: unique and below n; if `all` is 0, below n / 2 for cells with several entries.
KERNEL group_cells(
    const i64* cells, const i64* order, i64 n, i64 all, i64* heads, i64* starts, i64* ends, i64* sum_at) {
  for (i64 p = first_thread(); p < n; p += all_threads()) {
    const i64 i = order[p], cell = cells[i];
    const bool leads = cell >= 0 && !(p && cells[order[p - 1]] == cell);
    heads[i] = leads ? cell : -1;
    if (!leads) continue;
    starts[i] = p;
    ends[i] = end_of_run(cells, order, n, p);
    sum_at[i] = all ? p : p >> 1;  // two cells with several entries are at least two places apart
  }
}
