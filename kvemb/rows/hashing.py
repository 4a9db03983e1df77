"""Hashing of keys: the finaliser every table uses, batch de-duplication, and an index from key to position.

The hash is MurmurHash3's 64-bit finaliser (Appleby, public domain), a bijection, so no two keys share all 64 bits.
Kernels here release the GIL and touch only what they are given; callers hold the locks.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from kvemb.rows.compiled import compiled

Keys = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]

EMPTY = -1


def kernel(function: Any) -> Any:
    """Compile a nogil kernel and cache it on disk, if possible (kvemb.rows.compiled). Division by zero is IEEE 754's.

    No fastmath, so that no multiply-add is fused: results must not depend on the machine.
    """
    # numba notices changes of the kernel's own file only, but a kernel contains functions of other files too.
    stamp = source_stamp(Path(function.__code__.co_filename).parent)
    return compiled(function, stamp, nogil=True, error_model="numpy")


@cache
def source_stamp(folder: Path) -> str:
    """Return a digest of every source a kernel of this folder may be made of."""
    sources = sorted({*Path(__file__).parent.glob("*.py"), *folder.glob("*.py")})
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def inlined(function: Any) -> Any:
    """Compile a function into the kernels that call it."""
    return numba.njit(inline="always")(function)


@inlined
def mix(key: int) -> Any:
    """Return the 64-bit hash of a key, as uint64."""
    h = np.uint64(key)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


@kernel
def _unique(keys: Any, cells: Any, first: Any, last: Any, counts: Any, inverse: Any) -> int:
    mask = np.uint64(len(cells) - 1)
    found = 0
    for i in range(len(keys)):
        key = keys[i]
        at = mix(key) & mask
        while True:
            entry = cells[at]
            if entry < 0:
                cells[at] = found
                first[found] = i
                last[found] = i
                counts[found] = 1
                inverse[i] = found
                found += 1
                break
            if keys[first[entry]] == key:
                last[entry] = i
                counts[entry] += 1
                inverse[i] = entry
                break
            at = (at + np.uint64(1)) & mask
    return found


@kernel
def _sum_rows(inverse: Any, values: Any, out: Any) -> None:
    for i in range(len(inverse)):
        for j in range(values.shape[1]):
            out[inverse[i], j] += values[i, j]


class Unique:
    """The distinct keys of a batch, in order of first occurrence.

    keys (m,) int64; inverse (n,): for each key of the batch its position in `keys`; counts (m,): occurrences;
    last (m,): the position of the last occurrence in the batch. `repeated` says whether any key occurs twice.
    """

    def __init__(self, batch: Keys) -> None:
        n = len(batch)
        cells = np.full(table_size(n), EMPTY, np.int32)
        first, last, counts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        self.inverse: Positions = np.empty(n, np.int64)
        m = _unique(batch, cells, first, last, counts, self.inverse)
        self.repeated = m < n
        self.keys: Keys = batch[first[:m]] if self.repeated else batch
        self.last: Positions = last[:m]
        self.counts: Positions = counts[:m]

    def summed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values (n, dim) of the batch summed for each distinct key (m, dim), in the order of the batch.

        The array itself if no key occurs twice.
        """
        if not self.repeated:
            return values
        # -0.0 added to any number gives that number, so a key's sum does not depend on the rest of its batch.
        sums = np.full((len(self.keys), values.shape[1]), -0.0, values.dtype)
        _sum_rows(self.inverse, values, sums)
        return sums


def table_size(entries: int) -> int:
    """Cells of an open-addressing table that holds so many entries at most half full; a power of two."""
    return 1 << max(4, (2 * entries).bit_length())


@kernel
def _index_put(cells: Any, keys: Any, start: int, stop: int) -> None:
    mask = np.uint64(len(cells) - 1)
    for i in range(start, stop):
        at = mix(keys[i]) & mask
        while cells[at] >= 0 and keys[cells[at]] != keys[i]:
            at = (at + np.uint64(1)) & mask
        cells[at] = i


@kernel
def _index_find(cells: Any, keys: Any, wanted: Any, positions: Any) -> int:
    mask = np.uint64(len(cells) - 1)
    missing = 0
    for i in range(len(wanted)):
        at = mix(wanted[i]) & mask
        positions[i] = EMPTY
        while cells[at] >= 0:
            if keys[cells[at]] == wanted[i]:
                positions[i] = cells[at]
                break
            at = (at + np.uint64(1)) & mask
        missing += positions[i] < 0
    return missing


class KeyIndex:
    """The position of each key in a growing array `keys`; of equal keys, the latest.

    Holds up to `capacity` entries; the array stays the caller's. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._cells = np.full(table_size(capacity), EMPTY, np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._cells.nbytes

    def put(self, keys: Keys, start: int, stop: int) -> None:
        """Record keys[start:stop]."""
        _index_put(self._cells, keys, start, stop)

    def find(self, keys: Keys, wanted: Keys) -> Positions:
        """Return each wanted key's position (n,) int64, -1 where there is none."""
        positions = np.empty(len(wanted), np.int64)
        _index_find(self._cells, keys, wanted, positions)
        return positions

    def clear(self) -> None:
        """Forget every key."""
        self._cells.fill(EMPTY)
