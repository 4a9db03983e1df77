"""What kernels do with addresses."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from kvemb.kernels import addresses
from kvemb.kernels.compiling import kernel


@kernel
def _all(data: int, to: int, loaded: Any) -> int:
    loaded[0], loaded[1] = addresses.load_8(data + 1), addresses.load_32(data + 1)
    loaded[2] = np.int64(addresses.load_64(data + 1))
    loaded[3] = np.int64(addresses.reversed_bytes(np.uint64(0x0102)))
    loaded[4] = np.int64(addresses.folded_product(np.uint64(1 << 63), np.uint64(6)))
    addresses.prefetch(0)
    addresses.copy(to, data + 1, 5)
    return addresses.advise(data, 4096, 3)


def test_numbers_are_loaded_from_any_address_and_bytes_copied():
    memory = mmap.mmap(-1, 4096)
    data = np.frombuffer(memory, np.uint8)
    data[:16] = range(240, 256)
    to, loaded = np.zeros(8, np.uint8), np.zeros(5, np.int64)
    assert _all(data.ctypes.data, to.ctypes.data, loaded) == 0
    little = [int.from_bytes(bytes(data[1 : 1 + nbytes]), "little") for nbytes in (1, 4)]
    assert loaded[:2].tolist() == little
    assert bytes(loaded[2:3].view(np.uint8)) == bytes(data[1:9])
    assert loaded[3] == 0x0201 << 48
    assert loaded[4] == 3
    assert to.tolist() == [*range(241, 246), 0, 0, 0]


@kernel
def _narrowed(source: int, to: int) -> bool:
    return addresses.narrow_8(source, to)


def test_eight_numbers_are_narrowed_at_once_and_one_that_is_not_ascii_is_told():
    numbers, to = np.arange(120, 128, dtype=np.uint32), np.zeros(9, np.uint8)
    assert _narrowed(numbers.ctypes.data, to.ctypes.data + 1)
    assert to.tolist() == [0, *range(120, 128)]
    for place in range(8):
        for wrong in (0x80, 0x100, 2**32 - 1):
            other = numbers.copy()
            other[place] = wrong
            assert not _narrowed(other.ctypes.data, to.ctypes.data)
