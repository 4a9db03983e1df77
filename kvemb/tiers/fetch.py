"""A read of cold rows that runs while the variable's lock is free.

Between its start and its use another call may move a row through the hot tier and back to the cold store; the tier
then calls invalidate(), and that row is read again. All but read() and wait() run under that lock.
"""

from __future__ import annotations

import threading

import numpy as np

from kvemb.contracts import ColdStore
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import KeyIndex, Keys, Positions


class Fetch:
    """The cold rows of some distinct keys, ascending by codec.order_keys, none of them in memory when it began."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._index = KeyIndex(len(keys))
        self._index.put(keys, 0, len(keys))
        self._fresh = np.ones(len(keys), np.bool_)
        self._row_of = np.full(len(keys), -1, np.int64)
        self._block: RowBlock | None = None
        self._done = threading.Event()

    def read(self, cold: ColdStore) -> None:
        """Read the rows, without the lock."""
        try:
            block, found = cold.read(self.keys)
            self._row_of[found] = np.arange(len(block))
            self._block = block
        finally:
            self._done.set()

    def wait(self) -> None:
        """Wait until read() has ended, well or not."""
        self._done.wait()

    @property
    def reading(self) -> bool:
        """Whether read() has not ended."""
        return not self._done.is_set()

    def invalidate(self, keys: Keys | None = None) -> None:
        """Rows of these keys (None: of all) have changed in the cold store."""
        if keys is None:
            self._fresh[:] = False
        else:
            positions = self._index.find(self.keys, keys)
            self._fresh[positions[positions >= 0]] = False

    def covers(self, keys: Keys) -> Positions:
        """Return the position here of each key, -1 where it is not here or no longer fresh, or the read failed."""
        positions = self._index.find(self.keys, keys)
        if self._block is None and not self.reading:
            positions[:] = -1
        positions[(positions >= 0) & ~self._fresh[positions]] = -1
        return positions

    def copy(self, positions: Positions, into: RowBlock, to: Positions) -> np.ndarray:
        """Copy the rows at positions to rows `to` of into; returns exists (n,) bool."""
        assert self._block is not None
        rows = self._row_of[positions]
        exists = rows >= 0
        into.put(to[exists], self._block.select(rows[exists]))
        return exists
