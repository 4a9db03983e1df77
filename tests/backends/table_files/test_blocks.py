"""Index blocks and data blocks against a search by Python, for all distances of restart points."""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import Any

import numpy as np
import pytest

from kvemb.backends.rocks_log import numbers
from kvemb.backends.table_files import blocks
from kvemb.kernels.compiling import kernel

AROUND = 64  # bytes behind a block that a search may look at, as a file has


@kernel
def _find_block(index: int, entry_bytes: int, count: int, sample: Any, key: Any, found: Any) -> None:
    segment = 0
    while segment < len(sample) - 1 and sample[segment] < key:
        segment += 1
    found[0], found[1] = blocks.find_block(index, entry_bytes, index + entry_bytes, count, segment, key)


@kernel
def _find_value(block: int, size: int, key: Any, found: Any) -> None:
    found[0], found[1], found[2] = blocks.find_value(block, size, key)


def zigzag(change: int) -> int:
    return change << 1 if change >= 0 else (-change << 1) - 1


def block_of(entries: list[tuple[bytes, Any]], interval: int, encode: Any) -> np.ndarray:
    """A block of keys and values, with restart points; encode(value, whether it is at one, shared)."""
    out, restarts, before = bytearray(), [], b""
    for at, (key, value) in enumerate(entries):
        shared = 0
        if at % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        length, encoded = encode(value, shared)
        out += numbers(shared, len(key) - shared, *length) + key[shared:] + encoded
        before = key
    out += b"".join(struct.pack("<I", restart) for restart in (*restarts, len(restarts)))
    return np.frombuffer(bytes(out) + bytes(AROUND), np.uint8)


@pytest.mark.parametrize("interval", [1, 3, 16])
def test_an_index_finds_the_block_of_every_key(interval):
    random = np.random.default_rng(interval)
    last = np.unique(random.integers(0, 2**64, 700, dtype=np.uint64) >> random.integers(0, 40, 700).astype(np.uint64))
    keys, handles, at = [], [], 0
    for number in last.tolist():
        key = number.to_bytes(8, "big")
        for nbytes in range(1, 8):  # the shortest separator that is above the key, and below the next one
            short = (number >> 8 * (8 - nbytes)) + 1
            if short < 1 << 8 * nbytes and not np.any((last > number) & (last <= np.uint64(short << 8 * (8 - nbytes)))):
                key = short.to_bytes(nbytes, "big")
                break
        keys.append(key)
        handles.append((at, int(random.integers(17, 3000))))
        at += handles[-1][1] + blocks.TRAILER_BYTES
    sizes = iter([0, *(size for _, size in handles)])

    def encode(handle: tuple[int, int], shared: int) -> Any:
        previous = next(sizes)
        return (), numbers(*handle) if shared == 0 else numbers(zigzag(handle[1] - previous))

    # An entry that shares nothing is whole, wherever it is.
    block = block_of(list(zip(keys, handles, strict=True)), interval, encode)
    base, size = block.ctypes.data, len(block) - AROUND
    count = struct.unpack_from("<I", block, size - 4)[0]
    entry_bytes, found = size - 4 - 4 * count, np.zeros(2, np.int64)
    sample = np.empty(-(-count // blocks.SAMPLED), np.uint64)
    blocks.take_sample(base, entry_bytes, base + entry_bytes, count, sample)
    for key in [0, *last.tolist(), *(last[:-1] + np.uint64(1)).tolist(), *random.integers(0, 2**62, 300).tolist()]:
        _find_block(base, entry_bytes, count, sample, np.uint64(key), found)
        place = bisect_left(last.tolist(), key)
        if place == len(last):
            continue
        assert found.tolist() != [0, -1]
        # A key between two blocks may be sought in either: it is in none.
        possible = [handles[place]] if key in last else handles[max(0, place - 1) : place + 1]
        assert tuple(found.tolist()) in possible


@pytest.mark.parametrize("interval", [1, 4, 16])
def test_a_block_has_the_newest_value_of_every_key(interval):
    random = np.random.default_rng(interval)
    model, entries = dict[int, tuple[int, bytes]](), []
    for key in np.unique(random.integers(0, 5000, 200)).tolist():
        for version in range(int(random.integers(1, 4)), 0, -1):  # the newest first
            kind, value = int(random.integers(2)), bytes(random.integers(0, 256, random.integers(0, 300), np.uint8))
            model.setdefault(key, (kind, value))
            entries.append((key.to_bytes(8, "big") + struct.pack("<Q", version << 8 | kind), value))
    block = block_of(entries, interval, lambda value, shared: ((len(value),), value))
    base, size, found = block.ctypes.data, len(block) - AROUND, np.zeros(3, np.int64)
    for key in range(5001):
        _find_value(base, size, np.uint64(key), found)
        kind, address, nbytes = found.tolist()
        if key in model:
            at = address - base
            assert (kind, bytes(block[at : at + nbytes])) == model[key]
        else:
            assert kind == blocks.ABSENT


@pytest.mark.parametrize("damage", ["count", "restart", "shared", "length"])
def test_a_block_that_points_out_of_itself_is_damaged(damage):
    entries = [(key.to_bytes(8, "big") + bytes([1, *bytes(7)]), b"value") for key in range(40)]
    block = block_of(entries, 4, lambda value, shared: ((len(value),), value)).copy()
    size, found = len(block) - AROUND, np.zeros(3, np.int64)
    match damage:
        case "count":
            struct.pack_into("<I", block, size - 4, 0x80000000 | 10)
        case "restart":
            block[size - 44 : size - 4] = 255
        case "shared":
            block[0] = 3
        case "length":
            block[2:4] = 255
            block[4] = 127
    _find_value(block.ctypes.data, size, np.uint64(2), found)
    assert found[0] == blocks.DAMAGED
