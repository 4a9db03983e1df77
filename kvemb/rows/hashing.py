"""Distinct keys of a batch, and an index from key to position. The kernels are in hash_kernels.

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
_ALL = np.empty(0, np.bool_)


@cache
def _kernels() -> ModuleType:
    # Cached, because an import statement takes half a microsecond, too long for a call on one key.
    from kvemb.rows import hash_kernels

    return hash_kernels


class Sums(NamedTuple):
    """For each of some keys, the rows of an array that are summed, in order.

    first (m,): each key's first row. following (n,): for each row of the array, the next row of the same key, or -1.
    key_of (n,), counts (m,): of sums of a whole array also each row's key, and how many rows a key has; else None.
    """

    first: Positions
    following: Positions
    key_of: Positions | None = None
    counts: Positions | None = None

    @property
    def chained(self) -> bool:
        """Whether any key has several rows."""
        return bool((self.following >= 0).any())

    def grouped(self) -> tuple[Positions, Positions]:
        """Return the rows of the keys, key by key in order, and bounds: key i has rows[bounds[i]:bounds[i + 1]]."""
        rows, bounds = np.empty(len(self.following), np.int64), np.zeros(len(self.first) + 1, np.int64)
        _kernels().group_rows(self.first, self.following, rows, bounds)
        return rows[: bounds[-1]], bounds

    def of(self, chosen: Any) -> Sums:
        """Return the sums of the keys at `chosen` (positions or a slice)."""
        if isinstance(chosen, slice) and chosen.indices(len(self.first)) == (0, len(self.first), 1):
            return self
        return Sums(self.first[chosen], self.following)


class Unique:
    """The distinct keys of a batch, in order of first occurrence.

    keys (m,) int64; inverse (n,): the position in `keys` of each key of the batch; counts (m,): occurrences;
    last (m,): the position of the last occurrence in the batch. repeated: whether any key occurs twice; sums: the
    occurrences of each key, in the order of the batch.
    """

    keys: Keys
    inverse: Positions
    counts: Positions
    last: Positions

    def __init__(self, batch: Keys) -> None:
        if len(batch) == 1:  # nothing to compare
            first = np.zeros(1, np.int64)
            self.repeated, self.keys = False, batch
            self.inverse = self.last = first
            self.counts = first + 1
            self.sums = Sums(first, first + EMPTY, first, self.counts)
        else:
            self._compare(batch)

    def _compare(self, batch: Keys) -> None:
        n = len(batch)
        cells = np.empty(table_size(n), np.int32)
        first, last, counts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        self.inverse, following = np.empty(n, np.int64), np.empty(n, np.int64)
        m = _kernels().unique(batch, cells, first, last, counts, self.inverse, following)
        self.repeated = m < n
        self.keys = batch[first[:m]] if self.repeated else batch
        self.last = last[:m]
        self.counts = counts[:m]
        self.sums = Sums(first[:m], following, self.inverse, self.counts)

    def uses(self, counts: Positions | None) -> Positions:
        """Return the sum of counts (n,) over each key's occurrences (m,). None: each occurrence counts one."""
        if counts is None or not self.repeated:
            return self.counts if counts is None else counts
        return np.bincount(self.inverse, counts, len(self.keys)).astype(np.int64)


def table_size(entries: int) -> int:
    """Return the cells of an open-addressing table that `entries` entries fill at most half; a power of two."""
    return 1 << max(4, (2 * entries).bit_length())


class KeyIndex:
    """An index from key to its position in an array `keys`; for equal keys, the position put last.

    At most `capacity` positions can be put. The caller owns the array and passes it to each call. A position may be put
    again for another key: the old key's entry then no longer matches the array, and is skipped. Not thread-safe.
    """

    def __init__(self, capacity: int) -> None:
        self._cells = np.empty(table_size(capacity), np.int32)
        self._cells.fill(EMPTY)  # np.full would take longer than a small index
        self._room = capacity

    def has_room(self, puts: int) -> bool:
        """Whether `puts` more positions can be put."""
        return puts <= self._room

    def put(self, keys: Keys, start: int, stop: int) -> None:
        """Record keys[start:stop]."""
        _kernels().index_put(self._cells, keys, start, stop)
        self._room -= stop - start

    def put_at(self, keys: Keys, positions: Positions) -> None:
        """Record keys[positions]."""
        _kernels().index_put_at(self._cells, keys, positions)
        self._room -= len(positions)

    def find(self, keys: Keys, wanted: Keys, valid: npt.NDArray[np.bool_] = _ALL) -> Positions:
        """Return the position of each wanted key (n,) int64, -1 if it has none or its position is not valid.

        valid: a flag for each position. By default all are valid.
        """
        positions = np.empty(len(wanted), np.int64)
        _kernels().index_find(self._cells, keys, valid, wanted, positions)
        return positions
