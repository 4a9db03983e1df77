"""A read of cold rows that runs without the variable's lock.

Between the start of the read and the use of its rows, another call may change a row and write it to the cold store; it
then calls invalidate(), and that row is read again. Only begin(), read(), cancel() and wait() are called without that
lock.
"""

from __future__ import annotations

import threading
import time
from functools import cached_property

import numpy as np

from kvemb.contracts import ColdStore, Mask
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import check_scores
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.row_copies import copy_rows


class Fetch:
    """A read of the rows of some distinct keys, none of them in memory at its start.

    rows: where they are read to, with their keys. reading: True until read() has ended. count, seconds: how many rows
    were read, and how long that took; 0 before.
    """

    def __init__(self, rows: RowBlock) -> None:
        self.rows, self.keys = rows, rows.keys
        self.count, self.seconds = 0, 0.0
        self._found: Mask | None = None
        self._fresh: Mask | None = None  # None: all rows are
        self.reading = True
        self._to_begin, self._under_way = threading.Lock(), threading.Lock()
        self._under_way.acquire()

    # Created only when another call needs them, because most reads end before that.

    @cached_property
    def _index(self) -> KeyIndex:
        index = KeyIndex(len(self.keys))
        index.put(self.keys, 0, len(self.keys))
        return index

    @cached_property
    def _taken(self) -> Mask:
        return np.zeros(len(self.keys), np.bool_)

    @property
    def spent(self) -> bool:
        """Whether the read has ended and all of its valid rows were taken."""
        if self.reading:
            return False
        left = ~self._taken if self._fresh is None else self._fresh & ~self._taken
        return self._found is None or not left.any()

    def begin(self) -> bool:
        """Return whether the caller is the first one, which then must read()."""
        return self._to_begin.acquire(blocking=False)

    def cancel(self) -> None:
        """End the read if it has not begun."""
        if self.begin():
            self._end()

    def read(self, cold: ColdStore) -> None:
        """Read the rows, without the lock. Raises what cold.fill() raises, and Corruption if a score is NaN."""
        began = time.perf_counter()
        try:
            found = cold.fill(self.rows)
            if count := int(np.count_nonzero(found)):
                check_scores(self.rows)
            self._found, self.count = found, count
        finally:
            self.seconds = time.perf_counter() - began
            self._end()

    def _end(self) -> None:
        self.reading = False
        self._under_way.release()

    def wait(self) -> None:
        """Wait until read() has ended, successfully or not."""
        with self._under_way:
            pass

    def invalidate(self, keys: Keys | None = None) -> None:
        """Make the rows of these keys (None: all rows) unusable, because they changed in the cold store."""
        if keys is None:
            self._fresh = np.zeros(len(self.keys), np.bool_)
            return
        positions = self._index.find(self.keys, keys)
        if (changed := positions[positions >= 0]).size:
            self._fresh = np.ones(len(self.keys), np.bool_) if self._fresh is None else self._fresh
            self._fresh[changed] = False

    def covers(self, keys: Keys) -> Positions:
        """Return the position of each key in this read, -1 if it is not in it or invalidated, or if the read failed."""
        if self._found is None and not self.reading:
            return np.full(len(keys), -1, np.int64)
        return self._index.find(self.keys, keys, *(() if self._fresh is None else (self._fresh,)))

    def copy(self, positions: Positions, into: RowBlock, to: Positions) -> Mask:
        """Copy the rows at positions to rows `to` of into; returns exists (n,) bool."""
        assert self._found is not None
        self._taken[positions] = True
        exists = self._found[positions]
        copy_rows(self.rows, positions[exists], into, to[exists])
        return exists

    @property
    def sound(self) -> Mask | None:
        """Which of all rows exist (n,); None if they have not been read, or any has changed since."""
        return self._found if self._fresh is None else None
