"""De-duplication of a batch of keys, and an index from key to position; their kernels are in hash_kernels.

The kernels, and numba with them, are loaded at first use. Callers hold the locks.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]

EMPTY = -1


@cache
def _kernels() -> ModuleType:
    # Cached: an import statement takes half a microsecond, too much for a call of one key.
    from kvemb.rows import hash_kernels

    return hash_kernels


class Sums(NamedTuple):
    """Which rows of an array are summed for each of some keys, in which order.

    first (m,): each key's first row. following (n,): for each row of the array the one that is added after it, -1 after
    the last.
    """

    first: Positions
    following: Positions

    @classmethod
    def of_single_rows(cls, count: int) -> Sums:
        """Row i alone for key i."""
        return cls(np.arange(count), np.full(count, EMPTY, np.int64))

    @property
    def chained(self) -> bool:
        """Whether any key has several rows."""
        return bool((self.following >= 0).any())

    def of(self, chosen: Any) -> Sums:
        """Return those of the keys at `chosen`: positions, or a slice."""
        return Sums(self.first[chosen], self.following)


class Unique:
    """The distinct keys of a batch, in order of first occurrence.

    keys (m,) int64; inverse (n,): for each key of the batch its position in `keys`; counts (m,): occurrences;
    last (m,): the position of the last occurrence in the batch. `repeated` says whether any key occurs twice. sums: the
    occurrences of each key, in the order of the batch.
    """

    keys: Keys
    inverse: Positions
    counts: Positions
    last: Positions

    def __init__(self, batch: Keys) -> None:
        if len(batch) == 1:  # a call of one key has nothing to compare
            first = np.zeros(1, np.int64)
            self.repeated, self.keys = False, batch
            self.inverse = self.last = first
            self.counts, self.sums = first + 1, Sums(first, first + EMPTY)
        else:
            self._compare(batch)

    def _compare(self, batch: Keys) -> None:
        n = len(batch)
        cells = np.full(table_size(n), EMPTY, np.int32)
        first, last, counts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        self.inverse = np.empty(n, np.int64)
        following = np.empty(n, np.int64)
        m = _kernels().unique(batch, cells, first, last, counts, self.inverse, following)
        self.repeated = m < n
        self.keys = batch[first[:m]] if self.repeated else batch
        self.last = last[:m]
        self.counts = counts[:m]
        self.sums = Sums(first[:m], following)


def table_size(entries: int) -> int:
    """Cells of an open-addressing table that holds so many entries at most half full; a power of two."""
    return 1 << max(4, (2 * entries).bit_length())


class KeyIndex:
    """The position of each key in an array `keys`; of equal keys, the one put last.

    Takes up to `capacity` puts; the array stays the caller's. A position may be put again for another key: the entry of
    the old key then finds a key that is not its own, and is skipped. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._cells = np.full(table_size(capacity), EMPTY, np.int32)
        self._room = capacity

    def has_room(self, puts: int) -> bool:
        """Whether so many more positions may be put."""
        return puts <= self._room

    def put(self, keys: Keys, start: int, stop: int) -> None:
        """Record keys[start:stop]."""
        _kernels().index_put(self._cells, keys, start, stop)
        self._room -= stop - start

    def put_at(self, keys: Keys, positions: Positions) -> None:
        """Record keys[positions]."""
        _kernels().index_put_at(self._cells, keys, positions)
        self._room -= len(positions)

    def find(self, keys: Keys, wanted: Keys) -> Positions:
        """Return each wanted key's position (n,) int64, -1 where there is none."""
        positions = np.empty(len(wanted), np.int64)
        _kernels().index_find(self._cells, keys, wanted, positions)
        return positions
