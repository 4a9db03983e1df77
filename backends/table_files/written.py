"""Which keys of a family were written since a version of its files: rows that RocksDB may still have in its memory.

Writes are counted. RocksDB's memory has the last ones, and tells how many, so all below a floor are in files. Each key
has the count after the last write that had it. Thread-safe; writes come one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.table_files.written_kernels import mark_later, put, put_later
from kvemb.rows.codec import Ordered

_FIRST_CELLS = 1 << 10


class WrittenKeys:
    """The keys that were written above a floor. in_memory: returns the number of entries in RocksDB's memory.

    It takes 16 bytes a cell, and at most 43 bytes for each row in RocksDB's memory.
    """

    def __init__(self, in_memory: Callable[[], int]) -> None:
        self._in_memory = in_memory
        self._lock = threading.Lock()
        # Entries of writes that have ended. The first, in memory before the first call, have unknown keys.
        self._written = self._unknown = 0
        self._begun = False
        self._forgotten = 0  # keys whose last write is not above this are not here
        self._cells = _empty(_FIRST_CELLS)  # rows of a key and its count; 0: none
        self._used = 0

    def floor(self) -> int | None:
        """Return how many entries were written that RocksDB no longer has in memory. It may be more by now.

        None: it has entries whose keys are unknown, so it must be asked for all keys.

        An entry is in a file before it leaves the memory. So a list of the files that is asked for after this call has
        all entries below the floor.
        """
        self._begin()
        forgotten, written = self._forgotten, self._written  # before those in memory are counted, which may be more
        floor = max(forgotten, written - self._in_memory())
        return floor if floor >= self._unknown else None

    def _begin(self) -> None:
        """Count what is in memory, once. Not before the first call, since a family without rows is not made yet."""
        if not self._begun:
            with self._lock:
                if not self._begun:
                    self._written = self._unknown = self._in_memory()
                    self._begun = True

    @contextmanager
    def writing(self, keys: Ordered) -> Iterator[None]:
        """Write these keys in the block: one entry each. If the block fails, they may have been written or not."""
        self._begin()
        with self._lock:
            after = self._written + len(keys)
            self._make_room(len(keys))
            self._used += put(self._cells, keys, after)
        yield
        self._written = after

    def mark(self, keys: Ordered, floor: int, states: npt.NDArray[np.uint8], mark: int) -> bool:
        """Give the keys that were written above a floor a state. Returns whether the floor could be used."""
        with self._lock:
            if floor < self._forgotten:
                return False
            if floor < self._written or self._used:
                mark_later(self._cells, keys, floor, states, mark)
            return True

    def _make_room(self, count: int) -> None:
        """Forget what is in files by now, if the cells could become too full. REQUIRES: the lock."""
        if 4 * (self._used + count) <= 3 * len(self._cells):
            return
        self._forgotten = self.floor() or 0
        later = int(np.count_nonzero(self._cells[:, 1] > np.uint64(self._forgotten)))
        cells = _FIRST_CELLS
        while 4 * (later + count) > 2 * cells:
            cells *= 2
        old, self._cells = self._cells, _empty(cells)
        self._used = put_later(self._cells, old, self._forgotten)


def _empty(cells: int) -> Any:
    return np.zeros((cells, 2), np.uint64)
