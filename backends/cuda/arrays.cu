// What is done with arrays of a caller in device memory, beside the cells: rows of them by position, keys of another
// width, and which entries have the same cell.

// Copies rows of `bytes` bytes, in units of `unit`: those at the positions `chosen` of `from`, to the n rows of `to`.
KERNEL take_rows(const u8* from, const i64* chosen, i64 n, i64 bytes, i64 unit, u8* to) {
  for (i64 i = first_warp(); i < n; i += all_warps())
    copy_bytes(to + i * bytes, from + chosen[i] * bytes, (u32)bytes, (u32)unit);
}

// The reverse: row i of the n rows of `from` to the position chosen[i] of `to`. Positions are distinct.
KERNEL spread_rows(const u8* from, const i64* chosen, i64 n, i64 bytes, i64 unit, u8* to) {
  for (i64 i = first_warp(); i < n; i += all_warps())
    copy_bytes(to + chosen[i] * bytes, from + i * bytes, (u32)bytes, (u32)unit);
}

// Makes keys of 8 bytes out of those of 4.
KERNEL widen_keys(const int* given, i64 n, i64* wide_keys) {
  for (i64 i = first_thread(); i < n; i += all_threads()) wide_keys[i] = given[i];
}

// Cells that `without` says are not meant (0) become -1.
KERNEL leave_out(i64* cells, i64 n, const u8* without) {
  for (i64 i = first_thread(); i < n; i += all_threads())
    if (!without[i]) cells[i] = -1;
}

// Of n cells, which order sorts, stably: heads[i] is cells[i] if i is the first entry of its cell, else -1; following[i]
// is the next entry of the same cell, -1 after the last; of a head, sum_at[i] is where the sum over its entries goes:
// a number of its own below n, or below n / 2, and only of heads that something follows, if `all` is 0.
KERNEL chain_cells(
    const i64* cells, const i64* order, i64 n, i64 all, i64* heads, i64* following, i64* sum_at) {
  for (i64 p = first_thread(); p < n; p += all_threads()) {
    const i64 i = order[p];
    const bool later = p && cells[order[p - 1]] == cells[i], more = p + 1 < n && cells[order[p + 1]] == cells[i];
    heads[i] = later ? -1 : cells[i];
    following[i] = more ? order[p + 1] : -1;
    sum_at[i] = all ? p : p >> 1;  // entries of two such heads are at least two places apart
  }
}
