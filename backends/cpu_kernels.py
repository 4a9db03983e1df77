"""The CPU hot table's kernels: probe, insert with eviction, remove, double.

Layout: `buckets` of 16 cells. A key may stand in its first bucket (high half of its hash) or, when that one is full, in
its second (low half); a bucket is chosen by multiplying the half with the number of buckets (Lemire, "Fast random integer
generation in an interval", 2019), so doubling splits bucket b into 2b and 2b + 1 and the table doubles in place. One byte
a cell holds 0 (empty) or a digest of the hash, so that every int64 is usable as a key. All kernels release the GIL; the
caller holds the table's lock, and splits a batch among threads by hash only where that is said.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvemb.backends.intrinsics import prefetch
from kvemb.hashing import kernel, mix
from kvemb.rows import DIRTY

CELLS = 16
AHEAD = 24
LINE_BYTES = 64
# How a lookup records a use (kvemb.restrict.ScoreRule), -1 for not at all.
NO_TOUCH = -1
LAST_USE = 0
COUNT = 1

_U32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def first_bucket(h: Any, buckets: Any) -> Any:
    """The bucket a hash prefers."""
    return np.int64(((h >> _U32) * np.uint64(buckets)) >> _U32)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def second_bucket(h: Any, buckets: Any) -> Any:
    """The bucket a hash falls back to; it may be the same."""
    return np.int64(((h & _LOW) * np.uint64(buckets)) >> _U32)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def digest_of(h: Any) -> Any:
    """One byte of the hash, never 0. Independent of the buckets while there are fewer than 2^24 of them."""
    d = np.uint8((h >> _U32) & np.uint64(0xFF))
    return d if d != 0 else np.uint8(1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _in_bucket(key: Any, digest: Any, bucket: Any, digests: Any, keys: Any) -> Any:
    base = bucket * CELLS
    for c in range(base, base + CELLS):
        if digests[c] == digest and keys[c] == key:
            return c
    return -1


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _cell_of(key: Any, h: Any, buckets: Any, digests: Any, keys: Any) -> Any:
    digest = digest_of(h)
    first = first_bucket(h, buckets)
    cell = _in_bucket(key, digest, first, digests, keys)
    if cell < 0:
        second = second_bucket(h, buckets)
        if second != first:
            cell = _in_bucket(key, digest, second, digests, keys)
    return cell


@kernel
def find(wanted: Any, buckets: int, digests: Any, keys: Any, cells: Any) -> None:
    """cells[i] = the cell of wanted[i], or -1."""
    n = len(wanted)
    for i in range(min(AHEAD, n)):
        base = first_bucket(mix(wanted[i]), buckets) * CELLS
        prefetch(digests, base)
        prefetch(keys, base)
        prefetch(keys, base + 8)
    for i in range(n):
        if i + AHEAD < n:
            base = first_bucket(mix(wanted[i + AHEAD]), buckets) * CELLS
            prefetch(digests, base)
            prefetch(keys, base)
            prefetch(keys, base + 8)
        cells[i] = _cell_of(wanted[i], mix(wanted[i]), buckets, digests, keys)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _mine(key: Any, part: Any, parts: Any) -> Any:
    """Whether this thread handles a key: by the hash, so that equal keys meet in one thread, in order."""
    return parts == 1 or np.int64((mix(key) >> np.uint64(16)) & np.uint64(0xFF)) % parts == part


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _choose(wanted: Any, part: Any, parts: Any, chosen: Any) -> Any:
    m = 0
    for i in range(len(wanted)):
        chosen[m] = i
        m += _mine(wanted[i], part, parts)
    return m


@kernel
def lookup(
    wanted: Any, part: int, parts: int, buckets: int, digests: Any, keys: Any, values: Any, out: Any, dim: int,
    rule: int, now: float, scores: Any, flags: Any, cells: Any,
) -> int:
    """Find, copy and touch the keys of one part of the batch, in a pipeline: bucket, then row, then copy.

    Returns how many were found. Threads may run the parts of one batch at once: they touch different cells and rows.
    """
    chosen = np.empty(len(wanted) + 1, np.int64)
    n = _choose(wanted, part, parts, chosen)
    width = values.shape[1]
    line = max(1, LINE_BYTES // values.itemsize)
    found = 0
    near = AHEAD // 2
    for t in range(n + AHEAD):
        if t < n:
            base = first_bucket(mix(wanted[chosen[t]]), buckets) * CELLS
            prefetch(digests, base)
            prefetch(keys, base)
            prefetch(keys, base + 8)
        t1 = t - near
        if t1 >= 0 and t1 < n:
            i = chosen[t1]
            c = _cell_of(wanted[i], mix(wanted[i]), buckets, digests, keys)
            cells[i] = c
            if c >= 0:
                for j in range(0, dim, line):
                    prefetch(values, c * width + j)
                if rule >= 0:
                    prefetch(scores, c)
                    prefetch(flags, c)
        t2 = t - AHEAD
        if t2 >= 0:
            i = chosen[t2]
            c = cells[i]
            if c >= 0:
                found += 1
                for j in range(dim):
                    out[i, j] = values[c, j]
                if rule == COUNT:
                    scores[c] += 1.0
                    flags[c] |= DIRTY
                elif rule == LAST_USE:
                    scores[c] = now
                    flags[c] |= DIRTY
    return found


@kernel
def upsert(
    wanted: Any, part: int, parts: int, buckets: int, digests: Any, keys: Any, values: Any, given: Any, dim: int,
    step: int, steps: Any, flags: Any, cells: Any,
) -> int:
    """Find, and overwrite the embeddings found, in order; parts as in lookup. Returns how many were found."""
    chosen = np.empty(len(wanted) + 1, np.int64)
    n = _choose(wanted, part, parts, chosen)
    width = values.shape[1]
    line = max(1, LINE_BYTES // values.itemsize)
    found = 0
    near = AHEAD // 2
    for t in range(n + AHEAD):
        if t < n:
            base = first_bucket(mix(wanted[chosen[t]]), buckets) * CELLS
            prefetch(digests, base)
            prefetch(keys, base)
            prefetch(keys, base + 8)
        t1 = t - near
        if t1 >= 0 and t1 < n:
            i = chosen[t1]
            c = _cell_of(wanted[i], mix(wanted[i]), buckets, digests, keys)
            cells[i] = c
            if c >= 0:
                for j in range(0, dim, line):
                    prefetch(values, c * width + j)
                prefetch(steps, c)
                prefetch(flags, c)
        t2 = t - AHEAD
        if t2 >= 0:
            i = chosen[t2]
            c = cells[i]
            if c >= 0:
                found += 1
                for j in range(dim):
                    values[c, j] = given[i, j]
                steps[c] = step
                flags[c] |= DIRTY
    return found


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _empty_cell(bucket: Any, digests: Any) -> Any:
    base = bucket * CELLS
    for c in range(base, base + CELLS):
        if digests[c] == 0:
            return c
    return -1


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _lower(a: Any, b: Any, scores: Any, keys: Any) -> Any:
    """Of two cells the one that leaves first: the lower score, of equal ones the smaller key."""
    if b < 0 or scores[a] < scores[b] or (scores[a] == scores[b] and keys[a] < keys[b]):
        return a
    return b


@numba.njit  # type: ignore[untyped-decorator]
def _victim(first: Any, second: Any, scores: Any, keys: Any) -> Any:
    worst = -1
    for c in range(first * CELLS, first * CELLS + CELLS):
        worst = _lower(c, worst, scores, keys)
    if second != first:
        for c in range(second * CELLS, second * CELLS + CELLS):
            worst = _lower(c, worst, scores, keys)
    return worst


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _copy_row(
    to: Any, t_keys: Any, t_scores: Any, t_steps: Any, t_flags: Any, t_words: Any,
    source: Any, s_keys: Any, s_scores: Any, s_steps: Any, s_flags: Any, s_words: Any,
) -> None:
    t_keys[to] = s_keys[source]
    t_scores[to] = s_scores[source]
    t_steps[to] = s_steps[source]
    t_flags[to] = s_flags[source]
    for w in range(s_words.shape[1]):
        t_words[to, w] = s_words[source, w]


@kernel
def insert(
    buckets: int, digests: Any, keys: Any, scores: Any, steps: Any, flags: Any, words: Any,
    n_keys: Any, n_scores: Any, n_steps: Any, n_flags: Any, n_words: Any, by_score: bool,
    o_keys: Any, o_scores: Any, o_steps: Any, o_flags: Any, o_words: Any,
) -> Any:
    """Insert the rows n_*; dirty rows that leave are written to o_*. Returns (rows left dirty, cells newly used)."""
    out = 0
    used = 0
    n = len(n_keys)
    for i in range(n):
        if i + AHEAD < n:
            base = first_bucket(mix(n_keys[i + AHEAD]), buckets) * CELLS
            prefetch(digests, base)
            prefetch(scores, base)
            prefetch(scores, base + 8)
        h = mix(n_keys[i])
        first, second = first_bucket(h, buckets), second_bucket(h, buckets)
        cell = _empty_cell(first, digests)
        if cell < 0:
            cell = _empty_cell(second, digests)
        if cell >= 0:
            used += 1
        else:
            cell = _victim(first, second, scores, keys)
            if by_score and n_flags[i] & DIRTY == 0 and scores[cell] >= n_scores[i]:
                continue
            if flags[cell] & DIRTY:
                _copy_row(out, o_keys, o_scores, o_steps, o_flags, o_words, cell, keys, scores, steps, flags, words)
                out += 1
        digests[cell] = digest_of(h)
        _copy_row(cell, keys, scores, steps, flags, words, i, n_keys, n_scores, n_steps, n_flags, n_words)
    return out, used


@kernel
def remove(cells: Any, digests: Any, flags: Any) -> int:
    """Empty cells; returns how many were in use."""
    count = 0
    for i in range(len(cells)):
        c = cells[i]
        if c >= 0 and digests[c] != 0:
            digests[c] = 0
            flags[c] = 0
            count += 1
    return count


@kernel
def double(buckets: int, digests: Any, keys: Any, scores: Any, steps: Any, flags: Any, words: Any) -> None:
    """Split every bucket b into 2b and 2b + 1, from the last to the first, in place.

    The arrays already reach over twice the buckets. Bucket b's targets lie at or above b, and those above it are free by
    then; only bucket 0 is split within itself.
    """
    twice = 2 * buckets
    for b in range(buckets - 1, -1, -1):
        left = 2 * b * CELLS
        right = left + CELLS
        for s in range(b * CELLS, b * CELLS + CELLS):
            if digests[s] == 0:
                continue
            h = mix(keys[s])
            in_first = first_bucket(h, buckets) == b
            target = first_bucket(h, twice) if in_first else second_bucket(h, twice)
            if target == 2 * b:
                cell = left
                left += 1
            else:
                cell = right
                right += 1
            if cell != s:
                _copy_row(cell, keys, scores, steps, flags, words, s, keys, scores, steps, flags, words)
                digests[cell] = digests[s]
                digests[s] = 0
                flags[s] = 0


@kernel
def dirty_cells(flags: Any, start: int, stop: int, limit: int, cells: Any) -> Any:
    """Collect up to `limit` dirty cells from start on. Returns (how many, where to go on)."""
    count = 0
    c = start
    while c < stop and count < limit:
        if flags[c] & DIRTY:
            cells[count] = c
            count += 1
        c += 1
    return count, c
