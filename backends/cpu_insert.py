"""The CPU hot table's kernels that move rows: insert with eviction, remove, split, merge, collect dirty cells.

cpu_probe describes the layout. All kernels release the GIL; the caller holds the variable's lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.cpu_copies import copy_row
from kvemb.backends.cpu_probe import CELLS, digest_of, first_bucket, second_bucket
from kvemb.backends.intrinsics import (
    bits_set,
    equal_bytes,
    equal_keys,
    equal_scores,
    lowest_of_16,
    prefetch,
    smallest_key,
    trailing_zeros,
)
from kvemb.kernels.compiling import inlined, kernel
from kvemb.rows.block import DIRTY
from kvemb.rows.hash_kernels import mix

# How many rows ahead of its insertion a row's buckets are prefetched, and then the cell that it will probably take.
AHEAD, CELL_AHEAD = 16, 6
LINE_CELLS = 8  # keys or scores in a cache line
# If a key's first bucket has at most this many empty cells, its second bucket is considered, too.
NEARLY_FULL = 3
# If at most one cell in FEW is empty, no row moves to make room, because finding the last empty cells takes too long.
FEW = 32


@inlined
def _empty_cell(h: Any, buckets: Any, tags: Any) -> Any:
    """Return an empty cell for a hash, -1 for none.

    It is in the first bucket, unless that is nearly full and the second one has more room. So most lookups end in the
    first bucket, and the table fills to nine tenths before both are full.
    """
    bucket = first_bucket(h, buckets)
    empty = equal_bytes(tags, 2 * bucket, np.uint8(0))
    room = bits_set(empty)
    if room <= NEARLY_FULL:
        second = second_bucket(h, buckets)
        empty_there = equal_bytes(tags, 2 * second, np.uint8(0))
        if bits_set(empty_there) > room:
            bucket, empty = second, empty_there
    return bucket * CELLS + trailing_zeros(empty) if empty != 0 else np.int64(-1)


@inlined
def _victim(first: Any, second: Any, scores: Any, keys: Any) -> Any:
    """Return the cell to evict from two full buckets: that of the lowest score; of equal scores, the smallest key.

    Without branches, which would be unpredictable where many scores are equal. If a score is NaN, it is any of the
    cells.
    """
    least = min(lowest_of_16(scores, first * CELLS), lowest_of_16(scores, second * CELLS))
    in_first, in_second = equal_scores(scores, first * CELLS, least), equal_scores(scores, second * CELLS, least)
    key = min(smallest_key(keys, first * CELLS, in_first), smallest_key(keys, second * CELLS, in_second))
    in_first &= equal_keys(keys, first * CELLS, key)
    in_second &= equal_keys(keys, second * CELLS, key)
    bucket, chosen = (first, in_first) if in_first != 0 else (second, in_second)
    return bucket * CELLS + trailing_zeros(chosen | np.uint64(1 << (CELLS - 1)))


@inlined
def _copy_row(to: Any, target: Any, row: Any, source: Any) -> None:
    """Copy row `row` of the columns `source` to row `to` of the columns `target`."""
    t_keys, t_scores, t_steps, t_flags, t_words = target
    s_keys, s_scores, s_steps, s_flags, s_words = source
    t_keys[to] = s_keys[row]
    t_scores[to] = s_scores[row]
    t_steps[to] = s_steps[row]
    t_flags[to] = s_flags[row]
    nbytes = 8 * s_words.shape[1]
    copy_row(t_words, to * nbytes, s_words, row * nbytes, nbytes)


@inlined
def _cell_by_moving(bucket: Any, buckets: Any, tags: Any, digests: Any, columns: Any) -> Any:
    """Move a row of a full bucket to its other bucket, if that has room; return the cell that it left, else -1."""
    keys = columns[0]
    for c in range(bucket * CELLS, bucket * CELLS + CELLS):
        h = mix(keys[c])
        other = first_bucket(h, buckets)
        if other == bucket:
            other = second_bucket(h, buckets)
        empty = equal_bytes(tags, 2 * other, np.uint8(0))
        if empty != 0:
            to = other * CELLS + trailing_zeros(empty)
            _copy_row(to, columns, c, columns)
            digests[to] = digests[c]
            return c
    return np.int64(-1)


@inlined
def _cell_for(h: Any, buckets: Any, moving: Any, tags: Any, digests: Any, columns: Any) -> Any:
    """Return an empty cell for a hash, -1 for none. moving: whether rows of its full buckets may move to make room."""
    cell = _empty_cell(h, buckets, tags)
    if cell < 0 and moving:
        for bucket in (first_bucket(h, buckets), second_bucket(h, buckets)):  # one copy of the code for both
            if cell < 0:
                cell = _cell_by_moving(bucket, buckets, tags, digests, columns)
    return cell


@kernel
def insert(
    buckets: int,
    tags: Any,
    digests: Any,
    columns: Any,
    rows: Any,
    start: int,
    by_score: bool,
    clean_too: bool,
    used: int,
    dense: int,
    left: Any,
    end: int,
) -> Any:
    """Insert rows from position start on; write evicted dirty rows to `left` from end on.

    clean_too: write evicted clean rows, too. columns, rows, left: RowBlock.columns of the table, of the new rows, and
    of those that leave. used: cells in use. dense: insertion stops before the first row that would evict another and,
    once this many cells are in use, before the first row whose two buckets are full; -1: it never stops, but evicts.
    Returns (the position where it stopped, the end of left, cells in use).
    """
    keys, scores, steps, flags, words = columns
    n_keys, n_scores, _, n_flags, _ = rows
    n = len(n_keys)
    few = buckets * CELLS // FEW
    for i in range(start, n):
        if i + AHEAD < n:
            h = mix(n_keys[i + AHEAD])
            for bucket in (first_bucket(h, buckets), second_bucket(h, buckets)):
                prefetch(tags, 2 * bucket)
                for c in range(bucket * CELLS, bucket * CELLS + CELLS, LINE_CELLS):
                    prefetch(scores, c)
                    prefetch(keys, c)
        full = buckets * CELLS - used <= few
        if dense < 0 and full and i + CELL_AHEAD < n:
            h = mix(n_keys[i + CELL_AHEAD])
            cell = _victim(first_bucket(h, buckets), second_bucket(h, buckets), scores, keys)
            prefetch(steps, cell)
            prefetch(flags, cell)
            for w in range(0, words.shape[1], LINE_CELLS):
                prefetch(words, cell * words.shape[1] + w)
        h = mix(n_keys[i])
        moving = not full and (dense < 0 or used < dense)
        cell = _cell_for(h, buckets, moving, tags, digests, columns)
        if cell >= 0:
            used += 1
        elif dense >= 0:
            return i, end, used
        else:
            cell = _victim(first_bucket(h, buckets), second_bucket(h, buckets), scores, keys)
            if by_score and n_flags[i] & DIRTY == 0 and scores[cell] >= n_scores[i]:
                continue
            if clean_too or flags[cell] & DIRTY:
                _copy_row(end, left, cell, columns)
                end += 1
        digests[cell] = digest_of(h)
        _copy_row(cell, columns, i, rows)
    return n, end, used


@kernel
def remove(cells: Any, digests: Any, flags: Any) -> int:
    """Empty cells; returns the number that were in use."""
    count = 0
    for i in range(len(cells)):
        c = cells[i]
        if c >= 0 and digests[c] != 0:
            digests[c] = 0
            flags[c] = 0
            count += 1
    return count


@kernel
def split(buckets: int, more: int, digests: Any, columns: Any) -> None:
    """Append `more` buckets, one after the other; each takes a part of the rows of the bucket that it splits.

    columns: RowBlock.columns of the table, which have room for them.
    """
    keys, _, _, flags, _ = columns
    top = 1
    while 2 * top <= buckets:
        top *= 2
    for new in range(buckets, buckets + more):
        if new == 2 * top:
            top = new
        old = new - top
        to = new * CELLS
        for s in range(old * CELLS, old * CELLS + CELLS):
            if digests[s] == 0:
                continue
            h = mix(keys[s])
            in_first = first_bucket(h, new) == old
            if (first_bucket(h, new + 1) if in_first else second_bucket(h, new + 1)) == new:
                _copy_row(to, columns, s, columns)
                digests[to] = digests[s]
                digests[s] = 0
                flags[s] = 0
                to += 1


@kernel
def merge(buckets: int, least: int, tags: Any, digests: Any, columns: Any, used: int, left: Any) -> Any:
    """Empty the buckets from the last one down to `least`: each row moves to a bucket below, if there is room.

    If not, the lowest score of the row and the 32 cells it may be in is evicted (of equal scores, the smaller key); a
    dirty one is written to `left`. columns, left: RowBlock.columns. Returns (buckets, the end of left, cells in use).
    """
    end = 0
    keys, scores, _, flags, _ = columns
    while buckets > least:
        buckets -= 1
        few = buckets * CELLS // FEW
        for c in range(buckets * CELLS, buckets * CELLS + CELLS):
            if digests[c] == 0:
                continue
            h = mix(keys[c])
            moving = buckets * CELLS - used > few
            cell = _cell_for(h, buckets, moving, tags, digests, columns)
            if cell < 0:
                used -= 1
                leaving = _victim(first_bucket(h, buckets), second_bucket(h, buckets), scores, keys)
                if scores[c] < scores[leaving] or (scores[c] == scores[leaving] and keys[c] < keys[leaving]):
                    leaving = c
                if flags[leaving] & DIRTY:
                    _copy_row(end, left, leaving, columns)
                    end += 1
                cell = leaving
            if cell != c:
                _copy_row(cell, columns, c, columns)
                digests[cell] = digests[c]
            digests[c] = 0
            flags[c] = 0
    return buckets, end, used
