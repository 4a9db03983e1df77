"""The CPU hot table's kernels: probe, insert with eviction, remove, double.

Layout: `buckets` of 16 cells. A key may stand in its first bucket (high half of its hash) or, when that one is full, in
its second (low half); a bucket is chosen by multiplying the half with the number of buckets (Lemire, "Fast random integer
generation in an interval", 2019), so doubling splits bucket b into 2b and 2b + 1 and the table doubles in place. One byte
a cell holds 0 (empty) or a digest of the hash, so that every int64 is usable as a key; `tags` is those bytes as
words of eight. All kernels release the GIL; the
caller holds the table's lock, and splits a batch among threads by hash only where that is said.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvemb.backends.intrinsics import prefetch, trailing_zeros
from kvemb.hashing import kernel, mix
from kvemb.rows import DIRTY

CELLS = 16
# Keys between asking for a bucket's digests and reading them, and on to using the row: measured, and flat around here.
FAR = 16
NEAR = 16
RING = 64  # hashes kept on the way: a power of two above FAR + NEAR
NEARLY_FULL = 3
LINE_BYTES = 64
# How a lookup records a use (kvemb.restrict.ScoreRule), -1 for not at all.
NO_TOUCH = -1
LAST_USE = 0
COUNT = 1

_U32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)


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
def _matches(word: Any, digest: Any) -> Any:
    """The high bit of each byte of word that equals digest; a byte above one that does may show too, so verify the key.

    The lowest bit shown is always true (Mycroft's zero-byte test, as in "Bit Twiddling Hacks").
    """
    x = word ^ (np.uint64(digest) * _ONES)
    return (x - _ONES) & ~x & _HIGHS


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _in_bucket(key: Any, digest: Any, bucket: Any, tags: Any, keys: Any) -> Any:
    for half in range(2):
        mask = _matches(tags[2 * bucket + half], digest)
        while mask != 0:
            cell = bucket * CELLS + half * 8 + (trailing_zeros(mask) >> 3)
            if keys[cell] == key:
                return cell
            mask &= mask - np.uint64(1)
    return np.int64(-1)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _cell_of(key: Any, h: Any, buckets: Any, tags: Any, keys: Any) -> Any:
    digest = digest_of(h)
    first = first_bucket(h, buckets)
    cell = _in_bucket(key, digest, first, tags, keys)
    if cell < 0:
        cell = _in_bucket(key, digest, second_bucket(h, buckets), tags, keys)
    return cell


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _likely_cell(h: Any, buckets: Any, tags: Any) -> Any:
    """The first cell whose digest fits, -1 for none: right but for one key in 16, and found without reading keys."""
    digest = digest_of(h)
    bucket = first_bucket(h, buckets)
    mask = _matches(tags[2 * bucket], digest)
    if mask != 0:
        return bucket * CELLS + (trailing_zeros(mask) >> 3)
    mask = _matches(tags[2 * bucket + 1], digest)
    if mask != 0:
        return bucket * CELLS + 8 + (trailing_zeros(mask) >> 3)
    bucket = second_bucket(h, buckets)
    mask = _matches(tags[2 * bucket], digest)
    if mask != 0:
        return bucket * CELLS + (trailing_zeros(mask) >> 3)
    mask = _matches(tags[2 * bucket + 1], digest)
    if mask != 0:
        return bucket * CELLS + 8 + (trailing_zeros(mask) >> 3)
    return np.int64(-1)


@kernel
def find(wanted: Any, buckets: int, tags: Any, keys: Any, cells: Any) -> None:
    """cells[i] = the cell of wanted[i], or -1. A pipeline: digests, then the likely key, then the proof."""
    n = len(wanted)
    hashes = np.empty(RING, np.uint64)
    for t in range(n + FAR + NEAR):
        if t < n:
            h = mix(wanted[t])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        i = t - FAR
        if i >= 0 and i < n:
            cells[i] = _likely_cell(hashes[i & RING - 1], buckets, tags)
            if cells[i] >= 0:
                prefetch(keys, cells[i])
        i = t - FAR - NEAR
        if i >= 0 and cells[i] >= 0 and keys[cells[i]] != wanted[i]:
            cells[i] = _cell_of(wanted[i], hashes[i & RING - 1], buckets, tags, keys)


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
    wanted: Any, part: int, parts: int, buckets: int, tags: Any, keys: Any, values: Any, out: Any, dim: int,
    rule: int, now: float, scores: Any, flags: Any, cells: Any,
) -> None:
    """Find, copy and touch the keys of one part of the batch, in a pipeline: digests, then key and row, then the copy.

    Threads may run the parts of one batch at once: they touch different cells and rows.
    """
    chosen = np.empty(len(wanted) + 1, np.int64)
    n = _choose(wanted, part, parts, chosen)
    hashes = np.empty(RING, np.uint64)
    width = values.shape[1]
    line = max(1, LINE_BYTES // values.itemsize)
    for t in range(n + FAR + NEAR):
        if t < n:
            h = mix(wanted[chosen[t]])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        if t >= FAR and t - FAR < n:
            c = _likely_cell(hashes[t - FAR & RING - 1], buckets, tags)
            cells[chosen[t - FAR]] = c
            if c >= 0:
                prefetch(keys, c)
                for j in range(0, dim, line):
                    prefetch(values, c * width + j)
                if rule >= 0:
                    prefetch(scores, c)
                    prefetch(flags, c)
        if t >= FAR + NEAR:
            i = np.uint64(chosen[t - FAR - NEAR])
            c = cells[i]
            if c >= 0 and keys[c] != wanted[i]:
                c = _cell_of(wanted[i], mix(wanted[i]), buckets, tags, keys)
                cells[i] = c
            if c >= 0:
                row = np.uint64(c)
                for j in range(dim):
                    out[i, j] = values[row, j]
                if rule == COUNT:
                    scores[row] += 1.0
                    flags[row] |= DIRTY
                elif rule == LAST_USE:
                    scores[row] = now
                    flags[row] |= DIRTY


@kernel
def upsert(
    wanted: Any, part: int, parts: int, buckets: int, tags: Any, keys: Any, values: Any, given: Any, dim: int,
    step: int, steps: Any, flags: Any, cells: Any,
) -> None:
    """Find, and overwrite the embeddings found, in order; parts and pipeline as in lookup."""
    chosen = np.empty(len(wanted) + 1, np.int64)
    n = _choose(wanted, part, parts, chosen)
    hashes = np.empty(RING, np.uint64)
    width = values.shape[1]
    line = max(1, LINE_BYTES // values.itemsize)
    for t in range(n + FAR + NEAR):
        if t < n:
            h = mix(wanted[chosen[t]])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        if t >= FAR and t - FAR < n:
            c = _likely_cell(hashes[t - FAR & RING - 1], buckets, tags)
            cells[chosen[t - FAR]] = c
            if c >= 0:
                prefetch(keys, c)
                for j in range(0, dim, line):
                    prefetch(values, c * width + j)
                prefetch(steps, c)
                prefetch(flags, c)
        if t >= FAR + NEAR:
            i = np.uint64(chosen[t - FAR - NEAR])
            c = cells[i]
            if c >= 0 and keys[c] != wanted[i]:
                c = _cell_of(wanted[i], mix(wanted[i]), buckets, tags, keys)
                cells[i] = c
            if c >= 0:
                row = np.uint64(c)
                for j in range(dim):
                    values[row, j] = given[i, j]
                steps[row] = step
                flags[row] |= DIRTY


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _bytes_shown(mask: Any) -> Any:
    return (((mask >> np.uint64(7)) * _ONES) >> np.uint64(56)) & np.uint64(0xFF)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _empty_cells(bucket: Any, tags: Any) -> Any:
    """How many cells of a bucket are empty. Digests in use are 1 to 255, so adding 127 to their low bits tells exactly."""
    count = np.uint64(0)
    for half in range(2):
        word = tags[2 * bucket + half]
        used = ((word & ~_HIGHS) + ~_HIGHS) | word
        count += _bytes_shown(~used & _HIGHS)
    return count


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _empty_cell(h: Any, buckets: Any, tags: Any) -> Any:
    """An empty cell for a hash, -1 for none. The first bucket, until it is nearly full and the second is emptier:

    lookups mostly end in the first, and yet no key finds both full before the table is nine tenths full.
    """
    bucket = first_bucket(h, buckets)
    room = _empty_cells(bucket, tags)
    if room <= NEARLY_FULL:
        second = second_bucket(h, buckets)
        second_room = _empty_cells(second, tags)
        if second_room > room:
            bucket, room = second, second_room
    if room == 0:
        return np.int64(-1)
    mask = _matches(tags[2 * bucket], np.uint8(0))
    if mask != 0:
        return bucket * CELLS + (trailing_zeros(mask) >> 3)
    return bucket * CELLS + 8 + (trailing_zeros(_matches(tags[2 * bucket + 1], np.uint8(0))) >> 3)


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
    buckets: int, tags: Any, digests: Any, keys: Any, scores: Any, steps: Any, flags: Any, words: Any,
    start: int, n_keys: Any, n_scores: Any, n_steps: Any, n_flags: Any, n_words: Any, by_score: bool, evicting: bool,
    out: int, o_keys: Any, o_scores: Any, o_steps: Any, o_flags: Any, o_words: Any,
) -> Any:
    """Insert the rows n_* from start on; dirty rows that leave are written to o_* from out on.

    Not evicting: stops at the first row for which another would have to leave. Returns (where it stopped, the end of o_*,
    cells newly used).
    """
    used = 0
    n = len(n_keys)
    for i in range(start, n):
        if i + NEAR < n:
            bucket = first_bucket(mix(n_keys[i + NEAR]), buckets)
            prefetch(tags, 2 * bucket)
            prefetch(scores, bucket * CELLS)
            prefetch(scores, bucket * CELLS + 8)
        h = mix(n_keys[i])
        cell = _empty_cell(h, buckets, tags)
        if cell >= 0:
            used += 1
        elif not evicting:
            return i, out, used
        else:
            cell = _victim(first_bucket(h, buckets), second_bucket(h, buckets), scores, keys)
            if by_score and n_flags[i] & DIRTY == 0 and scores[cell] >= n_scores[i]:
                continue
            if flags[cell] & DIRTY:
                _copy_row(out, o_keys, o_scores, o_steps, o_flags, o_words, cell, keys, scores, steps, flags, words)
                out += 1
        digests[cell] = digest_of(h)
        _copy_row(cell, keys, scores, steps, flags, words, i, n_keys, n_scores, n_steps, n_flags, n_words)
    return n, out, used


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
