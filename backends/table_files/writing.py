"""The kernels that write a table file: entries into blocks, the blocks into an index, hashes of keys into a filter.

A block is full before the entry that would make it larger than the family's block size. Every 16th key of a block is
stored whole. The key of an index entry is as short as it may be, as in RocksDB's own files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.table_files.blocks import DELETION, TRAILER_BYTES, VALUE
from kvemb.backends.table_files.filters import hashed_key, line_of
from kvemb.kernels.addresses import copy, load_64, prefetch, reversed_bytes, store_8, store_32, store_64
from kvemb.kernels.compiling import compiled, kernel
from kvemb.kernels.xxh3 import checksum
from kvemb.rows.block import MEMORY_FLAGS, REMOVED

# What is known of a file while it is written, all int64: where the buffer begins in the file; the bytes in the buffer;
# where its block begins that is not full; the entries in this block, and its restart points; the last key; the bytes
# and entries of the index; the rows, and how many of these are removals.
STATE = 10
AT, USED, BLOCK, ENTRIES, RESTARTS, LAST, INDEX_USED, BLOCKS, ROWS, REMOVALS = range(STATE)
# Keys of a block of which the first is stored whole.
RESTART_KEYS = 16
# The most bytes of an entry beside its value, of what ends a block beside its restart points, and of an index entry.
ENTRY_BYTES, END_BYTES, INDEX_ENTRY_BYTES = 2 + 5 + 16, 4 + TRAILER_BYTES, 2 + 8 + 2 * 10
_HEAD_BYTES, _AHEAD = 17, 8
_U = np.uint64


@compiled
def _put_varint(at: int, number: int) -> int:
    """Write a number of 7 bits a byte; return the address behind it."""
    while number >= 128:
        store_8(at, number & 127 | 128)
        number >>= 7
        at += 1
    store_8(at, number)
    return at + 1


@compiled
def _shared_bytes(a: Any, b: Any) -> int:
    """Return how many bytes two different keys have in common at their beginning."""
    different, shared = a ^ b, 0
    while (different >> _U(56)) == _U(0):
        different <<= _U(8)
        shared += 1
    return shared


@compiled
def _put_separator(at: int, last: Any, following: Any, is_last: bool) -> Any:
    """Write the length and the bytes of a key from last on and below the following one; return the address behind it.

    is_last: no key follows.
    """
    nbytes, separator = np.int64(8), last
    if not is_last:
        cut = _U(8 * (7 - _shared_bytes(last, following)))  # bits below the first different byte
        if (last >> cut) + _U(1) < (following >> cut):
            nbytes, separator = np.int64(8) - np.int64(cut >> _U(3)), ((last >> cut) + _U(1)) << cut
    store_8(at, nbytes)
    store_64(at + 1, reversed_bytes(separator))
    return at + 1 + nbytes


@compiled
def _end_block(state: Any, out: Any, restarts: Any, index: Any, entries: Any, following: Any, is_last: bool,
               secret: int, sums: Any) -> None:  # fmt: skip
    """Write the restart points of the current block, and its entry of the index."""
    at = out.ctypes.data + state[USED]
    for r in range(state[RESTARTS]):
        store_32(at + 4 * r, restarts[r])
    at += 4 * state[RESTARTS]
    store_32(at, state[RESTARTS])
    begin = out.ctypes.data + state[BLOCK]
    nbytes = at + 4 - begin
    store_8(at + 4, 0)
    store_32(at + 5, checksum(begin, nbytes, secret, sums))
    entries[state[BLOCKS]] = state[INDEX_USED]
    to = index.ctypes.data + state[INDEX_USED]
    store_8(to, 0)
    to = _put_separator(to + 1, _U(state[LAST]), following, is_last)
    to = _put_varint(_put_varint(to, state[AT] + state[BLOCK]), nbytes)
    state[INDEX_USED] = to - index.ctypes.data
    state[BLOCKS] += 1
    state[BLOCK] = state[USED] = at + 4 + TRAILER_BYTES - out.ctypes.data
    state[ENTRIES] = state[RESTARTS] = 0


@kernel
def end_block(state: Any, out: Any, restarts: Any, index: Any, entries: Any, secret: int, sums: Any) -> None:
    """Complete the last block. REQUIRES: it has entries."""
    _end_block(state, out, restarts, index, entries, _U(0), True, secret, sums)


@kernel
def add_rows(
    keys: Any, places: Any, begin: int, scores: Any, steps: Any, flags: Any, words: Any, record_bytes: int,
    block_bytes: int, state: Any, out: Any, restarts: Any, index: Any, entries: Any, hashes: Any, secret: int,
    sums: Any,
) -> int:  # fmt: skip
    """Add rows in key order: the begin-th key's row is at places[begin] of the columns, and so on.

    Returns how many of all are added; fewer than there are if the buffer is full, or the index.
    """
    row_bytes = record_bytes - _HEAD_BYTES
    for t in range(begin, len(keys)):
        if t + _AHEAD < len(keys):
            ahead = words.ctypes.data + row_bytes * places[t + _AHEAD]
            for line in range(0, min(row_bytes, 512), 64):
                prefetch(ahead + line)
        key, p = keys[t], places[t]
        removed = flags[p] & REMOVED != 0
        nbytes = 0 if removed else record_bytes
        most = ENTRY_BYTES + nbytes + 4 * (state[RESTARTS] + 1) + END_BYTES
        full = state[ENTRIES] > 0 and state[USED] - state[BLOCK] + most > block_bytes
        if full:
            if state[INDEX_USED] + INDEX_ENTRY_BYTES > len(index) or state[BLOCKS] == len(entries):
                return t
            _end_block(state, out, restarts, index, entries, key, False, secret, sums)
        if state[USED] + most > len(out):
            return t
        at, shared = out.ctypes.data + state[USED], 0
        if state[ENTRIES] % RESTART_KEYS == 0:
            restarts[state[RESTARTS]] = state[USED] - state[BLOCK]
            state[RESTARTS] += 1
        else:
            shared = _shared_bytes(key, _U(state[LAST]))
        store_8(at, shared)
        store_8(at + 1, 16 - shared)
        at = _put_varint(at + 2, nbytes)
        store_64(at, reversed_bytes(key) >> _U(8 * shared))
        at += 8 - shared
        store_64(at, _U(DELETION if removed else VALUE))
        at += 8
        if not removed:
            copy(at, scores.ctypes.data + 8 * p, 8)
            copy(at + 8, steps.ctypes.data + 8 * p, 8)
            store_8(at + 16, np.int64(flags[p]) & ~MEMORY_FLAGS)
            copy(at + _HEAD_BYTES, words.ctypes.data + row_bytes * p, row_bytes)
            at += record_bytes
        hashes[state[ROWS]] = hashed_key(key)
        state[USED], state[LAST] = at - out.ctypes.data, np.int64(key)
        state[ENTRIES] += 1
        state[ROWS] += 1
        state[REMOVALS] += removed
    return len(keys)


@kernel
def fill_filter(hashes: Any, count: int, out: Any, lines: int, probes: int) -> None:
    """Set the bits of all keys in a filter of zeros."""
    begin = out.ctypes.data
    for t in range(count + _AHEAD):
        if t < count:
            prefetch(line_of(hashes[t], begin, lines))
        if t >= _AHEAD:
            line, bits = line_of(hashes[t - _AHEAD], begin, lines), hashes[t - _AHEAD] >> _U(32)
            for _ in range(probes):
                bit = np.int64(bits >> _U(23))
                word = line + 8 * (bit >> 6)
                store_64(word, load_64(word) | (_U(1) << _U(bit & 63)))
                bits = (bits * _U(0x9E3779B9)) & _U(0xFFFFFFFF)


@kernel
def checksum_of(data: int, nbytes: int, secret: int, sums: Any) -> int:
    """Return the checksum of bytes at an address, of which there are at least MIN_BYTES."""
    found: int = checksum(data, nbytes, secret, sums)
    return found
