// Kernels on callers' arrays in device memory, without cells: rows by position, keys of another width, and chains of
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

// Chains the entries of n cells, which `order` sorts stably. heads[i] is cells[i] if i is the first entry of its cell,
// else -1. following[i] is the next entry of the same cell, -1 after the last. sum_at[i], of a head, is the position of
// the sum over its entries: unique and below n; if `all` is 0, below n / 2, and set only for heads with further
// entries.
KERNEL chain_cells(
    const i64* cells, const i64* order, i64 n, i64 all, i64* heads, i64* following, i64* sum_at) {
  for (i64 p = first_thread(); p < n; p += all_threads()) {
    const i64 i = order[p];
    const bool later = p && cells[order[p - 1]] == cells[i], more = p + 1 < n && cells[order[p + 1]] == cells[i];
    heads[i] = later ? -1 : cells[i];
    following[i] = more ? order[p + 1] : -1;
    sum_at[i] = all ? p : p >> 1;  // two such heads are at least two places apart
  }
}
