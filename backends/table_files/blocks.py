"""Index blocks and data blocks, searched where they lie in a mapped file (FORMAT.md, "Table files").

A block is its entries, the offsets of its restart points (4 bytes each), and their number (4 bytes). An entry's key is
stored without the bytes that it shares with the one before, but whole at a restart point. Behind each block are one
byte, 0 for "not compressed", and 4 bytes of its checksum. A block is damaged if anything points out of it, so a kernel
never reads outside of a file, whatever its bytes are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.addresses import load_8, load_32, load_64, reversed_bytes
from kvemb.kernels.compiling import compiled, kernel

# Bytes behind a block.
TRAILER_BYTES = 5
# Kinds of entries: the low byte of the 8 bytes behind a key, whose others are its sequence number.
DELETION, VALUE = 0, 1
# What find_value returns besides a kind.
ABSENT, DAMAGED = -1, -2
# Restart points of an index between two keys of its sample.
SAMPLED = 64
_U = np.uint64
_KEY_BYTES, _INTERNAL_BYTES = 8, 16


@compiled
def varint(at: int) -> Any:
    """Return the number at an address, and the address behind it; at most 5 bytes are read."""
    value, shift = 0, 0
    while True:
        byte = load_8(at)
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128 or shift == 35:
            return value, at


@compiled
def _joined(before: Any, at: int, shared: int) -> Any:
    """Return a key, as a number, whose first `shared` bytes are those of the key before."""
    if shared >= _KEY_BYTES:
        return before
    rest = reversed_bytes(load_64(at))
    if shared == 0:
        return rest
    kept = _U(8 * (_KEY_BYTES - shared))
    return ((before >> kept) << kept) | (rest >> _U(8 * shared))


# Index blocks. The key of an entry is at least the last key of its data block, and below the first one of the next. It
# may be shortened; then it is above all keys that begin with it, padded with zeros, so 1 is taken off.


@compiled
def _bound(key: Any, nbytes: int) -> Any:
    """Return the largest key that a separator of nbytes bytes, read as 8, does not exclude."""
    if nbytes >= _KEY_BYTES:
        return key
    cut = _U(8 * (_KEY_BYTES - nbytes))
    return ((key >> cut) << cut) - _U(1)


@compiled
def separator(index: int, entry_bytes: int, restarts: int, number: int) -> Any:
    """Return the bound of an index's restart point; the largest key if it is damaged: the search then goes on there."""
    offset = load_32(restarts + 4 * number)
    if offset >= entry_bytes:
        return ~_U(0)
    nbytes = load_8(index + offset + 1)
    if load_8(index + offset) != 0 or nbytes == 0 or nbytes > _KEY_BYTES:
        return ~_U(0)
    return _bound(reversed_bytes(load_64(index + offset + 2)), nbytes)


@kernel
def take_sample(index: int, entry_bytes: int, restarts: int, count: int, sample: Any) -> None:
    """Fill in the bound of the last restart point of every SAMPLED ones."""
    for i in range(len(sample)):
        sample[i] = separator(index, entry_bytes, restarts, min(count, SAMPLED * (i + 1)) - 1)


@compiled
def find_block(index: int, entry_bytes: int, restarts: int, count: int, segment: int, key: Any) -> Any:
    """Return offset and size of the data block that may have a key; (0, 0) if there is none, size -1: damaged.

    segment: the first whose sampled bound is not below the key.
    """
    low, high = SAMPLED * segment, min(count, SAMPLED * (segment + 1))
    while low < high:
        middle = (low + high) >> 1
        if separator(index, entry_bytes, restarts, middle) < key:
            low = middle + 1
        else:
            high = middle
    # The entry is between the restart point before the first one that is not below the key, and that one.
    at, end = index + load_32(restarts + 4 * max(low - 1, 0)), index + entry_bytes
    current, offset, size = _U(0), 0, 0
    if at >= end:
        return 0, -1
    while at < end:
        shared, rest = load_8(at), load_8(at + 1)
        if shared + rest > _KEY_BYTES or rest == 0:
            return 0, -1
        current = _joined(current, at + 2, shared)
        at += 2 + rest
        if shared == 0:
            offset, at = varint(at)
            size, at = varint(at)
        else:  # the block follows the one before, and the difference of the sizes is stored, its sign in the last bit
            change, at = varint(at)
            offset += size + TRAILER_BYTES
            size += (change >> 1) ^ -(change & 1)
        if _bound(current, shared + rest) >= key:
            return offset, size
    return 0, 0


# Data blocks.


@compiled
def _key_at_restart(block: int, end: int, restart: int) -> Any:
    """Return the key at a restart point, and whether it is whole there."""
    at = block + load_32(restart)
    if at + 2 + _INTERNAL_BYTES > end or load_8(at) != 0 or load_8(at + 1) != _INTERNAL_BYTES:
        return _U(0), False
    at = varint(at + 2)[1]
    return reversed_bytes(load_64(at)), True


@compiled
def find_value(block: int, size: int, key: Any) -> Any:
    """Return the kind of a key's newest entry, and address and bytes of its value; ABSENT or DAMAGED, and zeros."""
    count = load_32(block + size - 4)
    end = block + size - 4 - 4 * count
    if count < 1 or end <= block:  # also if it has a hash index, which is the highest bit of the count
        return DAMAGED, 0, 0
    low, high = 0, count - 1
    while low < high:  # the last restart point below the key
        middle = (low + high + 1) >> 1
        found, whole = _key_at_restart(block, end, end + 4 * middle)
        if not whole:
            return DAMAGED, 0, 0
        if found < key:
            low = middle
        else:
            high = middle - 1
    at, current, kind = block + load_32(end + 4 * low), _U(0), 0
    if at >= end:
        return DAMAGED, 0, 0
    while at < end:
        shared, rest = load_8(at), load_8(at + 1)
        if shared + rest != _INTERNAL_BYTES:
            return DAMAGED, 0, 0
        nbytes, at = varint(at + 2)
        value = at + rest
        if value + nbytes > end:
            return DAMAGED, 0, 0
        current = _joined(current, at, shared)
        if shared <= _KEY_BYTES:
            kind = load_8(at + _KEY_BYTES - shared)
        if current >= key:
            if current > key:
                break
            return kind, value, nbytes
        at = value + nbytes
    return ABSENT, 0, 0
