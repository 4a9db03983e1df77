"""The CPU hot table's layout and its probing kernels: find, lookup, upsert. cpu_insert has the kernels that move rows.

Layout: `buckets` of 16 cells. A key is in its first bucket (high half of its hash) or, if that was nearly full and the
second one had more room, in its second bucket (low half). A bucket's number is the low bits of the half, as many as the
largest bucket number has; where there is no bucket of that number, the top bit is dropped (linear hashing: Litwin, VLDB
1980). So a bucket that is added takes its rows from one other bucket, and the last bucket can be merged into that one.
One byte a cell holds 0 (empty) or a digest of the hash, so every int64 is usable as a key; `tags` is a view of these
bytes as words of eight. All kernels release the GIL. The caller holds the variable's lock, and may split a batch over
threads only as a kernel's docstring says.

Arguments of kernels. wanted: the keys of the batch (n,). keys, words, scores, steps, flags: the table's columns, by
cell. Embeddings are copied as bytes, whatever their dtype. rings: the result of rings(), which holds the hashes and
likely cells of a pipeline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.cpu_copies import copy_row
from kvemb.backends.cpu_threads import in_parts
from kvemb.backends.intrinsics import (
    LINE_BYTES,
    atomic_add,
    equal_bytes,
    prefetch,
    trailing_zeros,
    uses_at,
)
from kvemb.kernels.compiling import inlined, kernel
from kvemb.rows.block import DIRTY
from kvemb.rows.hash_kernels import mix

CELLS = 16
# Prefetch distances in keys, measured: from a bucket's digests to the likely row, and from there to its use.
FAR = 16
NEAR = 16
# Words of a row, of eight bytes, that are in one cache line.
LINE_WORDS = LINE_BYTES // 8
RING = 64  # hashes kept in the pipeline: a power of two above FAR + NEAR
# How a lookup records a use (kvemb.restrict.ScoreRule); -1: not at all.
NO_TOUCH = -1
LAST_USE = 0
COUNT = 1

_U32 = np.uint64(32)
_U56 = np.uint64(56)
_LOW = np.uint64(0xFFFFFFFF)


def rings() -> Any:
    """Return the arrays in which a pipeline keeps its hashes and likely cells, for a kernel's argument."""
    return np.empty(RING, np.uint64), np.empty(RING, np.int64)


def rings_of_parts(parts: int) -> Any:
    """Return the rings of each part of a batch."""
    return np.empty((parts, RING), np.uint64), np.empty((parts, RING), np.int64)


@inlined
def _low_bits(buckets: Any) -> Any:
    """Return the smallest power of two that is at least `buckets`, minus 1. REQUIRES: buckets <= 2^31.

    It is the same for every key of a call, so a kernel computes it once.
    """
    mask = np.uint64(buckets - 1)
    mask |= mask >> np.uint64(1)
    mask |= mask >> np.uint64(2)
    mask |= mask >> np.uint64(4)
    mask |= mask >> np.uint64(8)
    return mask | mask >> np.uint64(16)


@inlined
def _bucket(half: Any, buckets: Any) -> Any:
    mask = _low_bits(buckets)
    bucket = half & mask
    return np.int64(bucket if bucket < np.uint64(buckets) else bucket & (mask >> np.uint64(1)))


@inlined
def first_bucket(h: Any, buckets: Any) -> Any:
    """Return the preferred bucket of a hash."""
    return _bucket(h >> _U32, buckets)


@inlined
def second_bucket(h: Any, buckets: Any) -> Any:
    """Return the alternative bucket of a hash; it may be the same."""
    return _bucket(h & _LOW, buckets)


@inlined
def digest_of(h: Any) -> Any:
    """Return one byte of the hash, not 0. Independent of the buckets while there are at most 2^24 of them."""
    d = np.uint8(h >> _U56)
    return d if d > 0 else np.uint8(1)


@inlined
def _in_bucket(key: Any, digest: Any, bucket: Any, tags: Any, keys: Any) -> Any:
    mask = equal_bytes(tags, 2 * bucket, digest)
    while mask != 0:
        cell = bucket * CELLS + trailing_zeros(mask)
        if keys[cell] == key:
            return cell
        mask &= mask - np.uint64(1)
    return np.int64(-1)


@inlined
def cell_of(key: Any, h: Any, buckets: Any, tags: Any, keys: Any) -> Any:
    """Return the cell of a key with this hash, -1 for none."""
    digest = digest_of(h)
    first = first_bucket(h, buckets)
    cell = _in_bucket(key, digest, first, tags, keys)
    if cell < 0:
        cell = _in_bucket(key, digest, second_bucket(h, buckets), tags, keys)
    return cell


@inlined
def likely_cell(h: Any, buckets: Any, tags: Any) -> Any:
    """Return the first cell whose digest matches, -1 for none. Reads no keys; wrong for about one key in 16."""
    digest, bucket = digest_of(h), first_bucket(h, buckets)
    mask = equal_bytes(tags, 2 * bucket, digest)
    if mask == 0:
        bucket = second_bucket(h, buckets)
        mask = equal_bytes(tags, 2 * bucket, digest)
    return bucket * CELLS + trailing_zeros(mask) if mask != 0 else np.int64(-1)


@kernel
def find(wanted: Any, start: int, stop: int, hashes: Any, buckets: int, tags: Any, keys: Any, cells: Any) -> None:
    """Set cells[i] to the cell of wanted[i], or -1, for start <= i < stop. Other threads may run other ranges.

    A pipeline: digests, then the likely cell, then the key's check.
    """
    for t in range(start, stop + FAR + NEAR):
        if t < stop:
            h = mix(wanted[t])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        i = t - FAR
        if i >= start and i < stop:
            cells[i] = likely_cell(hashes[i & RING - 1], buckets, tags)
            if cells[i] >= 0:
                prefetch(keys, cells[i])
        i = t - FAR - NEAR
        if i >= start and cells[i] >= 0 and keys[cells[i]] != wanted[i]:
            cells[i] = cell_of(wanted[i], hashes[i & RING - 1], buckets, tags, keys)


@in_parts
def find_in_parts(number: Any, arguments: Any) -> None:
    """Find the keys of a part of the batch, from bounds[number] to bounds[number + 1]."""
    wanted, bounds, hashes, buckets, tags, keys, cells = arguments
    find(wanted, bounds[number], bounds[number + 1], hashes[number], buckets, tags, keys, cells)


@kernel
def split(wanted: Any, chosen: Any, counts: Any) -> None:
    """Write the positions of each part's keys to chosen (parts, n), in order, and their numbers to counts.

    The hash chooses the part, so equal keys are in one part. The number of parts is a power of two.
    """
    counts[:] = 0
    for i in range(len(wanted)):
        part = np.int64(mix(wanted[i]) >> np.uint64(16)) & np.int64(len(counts) - 1)
        chosen[part, counts[part]] = i
        counts[part] += 1


@kernel
def lookup(
    wanted: Any,
    start: int,
    stop: int,
    rings: Any,
    cells: Any,
    uses: Any,
    out: Any,
    missing: Any,
) -> int:
    """Find wanted[start:stop], copy the rows to out (n, bytes of an embedding), uint8, and record the uses.

    A pipeline: digests, key and row, copy. cells: (buckets, tags, keys, words, scores, flags). uses: (rule, now,
    shared, counts): the rule, the time, whether other threads run other ranges of the batch, which may contain the same
    keys, so that uses must be counted atomically, and the number of uses at each position (uses_at). Plain tuples,
    because a named one adds half a microsecond to a call.

    Writes the positions of keys that are not found to missing[start:], and returns their number.
    """
    hashes, places = rings
    buckets, tags, keys, words, scores, flags = cells
    rule, now, shared, counts = uses
    nbytes = out.shape[1]
    width = words.shape[1]
    absent = 0
    for t in range(start, stop + FAR + NEAR):
        if t < stop:
            h = mix(wanted[t])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
        if t - FAR >= start and t - FAR < stop:
            c = likely_cell(hashes[t - FAR & RING - 1], buckets, tags)
            places[t - FAR & RING - 1] = c
            if c >= 0:
                prefetch(keys, c)
                for j in range(0, (nbytes + 7) >> 3, LINE_WORDS):
                    prefetch(words, c * width + j)
                if rule >= 0:
                    prefetch(scores, c)
                    prefetch(flags, c)
        i = t - FAR - NEAR
        if i >= start:
            c = places[i & RING - 1]
            if c >= 0 and keys[c] != wanted[i]:
                c = cell_of(wanted[i], hashes[i & RING - 1], buckets, tags, keys)
            if c >= 0:
                copy_row(out, i * nbytes, words, c * width * 8, nbytes)
                if rule >= 0:
                    if rule == LAST_USE:
                        scores[c] = max(scores[c], now)
                    elif shared:
                        atomic_add(scores, c, uses_at(counts, i))
                    else:
                        scores[c] += uses_at(counts, i)
                    flags[c] |= DIRTY
            else:
                missing[start + absent] = i
                absent += 1
    return absent


@in_parts
def lookup_in_parts(number: Any, arguments: Any) -> None:
    """Look up the keys of a part, and set absent[number] to the number of missing ones."""
    wanted, bounds, rings, cells, uses, out, missing, absent = arguments
    own = rings[0][number], rings[1][number]
    absent[number] = lookup(wanted, bounds[number], bounds[number + 1], own, cells, uses, out, missing)


@kernel
def upsert(wanted: Any, chosen: Any, rings: Any, cells: Any, given: Any, step: int) -> int:
    """Find the keys at the positions `chosen`, and overwrite their embeddings with those of given, in order.

    given (n, bytes of an embedding), uint8. cells: (buckets, tags, keys, words, steps, flags). The pipeline is
    lookup's. Threads may run parts with different keys concurrently. On return, `chosen` begins with the positions of
    keys that were not found; returns their number.
    """
    hashes, places = rings
    buckets, tags, keys, words, steps, flags = cells
    nbytes = given.shape[1]
    n = len(chosen)
    width = words.shape[1]
    absent = 0
    for t in range(n + FAR + NEAR):
        if t < n:
            h = mix(wanted[chosen[t]])
            hashes[t & RING - 1] = h
            prefetch(tags, 2 * first_bucket(h, buckets))
            for j in range(0, nbytes, LINE_BYTES):
                prefetch(given, chosen[t] * nbytes + j)
        if t >= FAR and t - FAR < n:
            c = likely_cell(hashes[t - FAR & RING - 1], buckets, tags)
            places[t - FAR & RING - 1] = c
            if c >= 0:
                prefetch(keys, c)
                for j in range(0, (nbytes + 7) >> 3, LINE_WORDS):
                    prefetch(words, c * width + j)
                prefetch(steps, c)
                prefetch(flags, c)
        if t >= FAR + NEAR:
            at = t - FAR - NEAR & RING - 1
            i = chosen[t - FAR - NEAR]
            c = places[at]
            if c >= 0 and keys[c] != wanted[i]:
                c = cell_of(wanted[i], hashes[at], buckets, tags, keys)
            if c >= 0:
                copy_row(words, c * width * 8, given, i * nbytes, nbytes)
                steps[c] = step
                flags[c] |= DIRTY
            else:
                chosen[absent] = i
                absent += 1
    return absent


@in_parts
def upsert_in_parts(number: Any, arguments: Any) -> None:
    """Upsert the keys at a part's positions, and set absent[number] to the number of those that are missing."""
    wanted, chosen, counts, rings, cells, given, step, absent = arguments
    own = rings[0][number], rings[1][number]
    absent[number] = upsert(wanted, chosen[number, : counts[number]], own, cells, given, step)
