"""Rows that were written and are in no table file yet: kvemb's own memtables, one for each family.

RocksDB's are not used. They take ten times the CPU time, with the GIL, because each row is an object in Python; and
kernels could not tell which rows are in them. Here a row is copied twice: to the end of its memtable, then to its file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from kvemb.rows.block import ReservedBlock, RowBlock
from kvemb.rows.codec import Ordered, order_keys
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import uninterrupted

_FIRST_ROWS = 256
# Bytes of a row beside its block: at most eight cells of an index made for twice the rows.
_MORE_BYTES = 32


def row_bytes(schema: Schema) -> int:
    """Return the bytes of memory that a row takes at most."""
    return RowBlock.bytes_per_row(schema) + _MORE_BYTES


class Memtable:
    """At most `most` rows, in the order in which they were written; of a key's rows the last one counts.

    Rows are added by one thread, until it is closed, and found by any. A row that is here does not change. block: all
    rows, each where find() says.
    """

    def __init__(self, schema: Schema, most: int) -> None:
        self.rows, self.most, self.closed = 0, most, False
        self.block = ReservedBlock(schema, most)
        self._index = KeyIndex(_FIRST_ROWS)
        self._lock = threading.Lock()

    def put(self, rows: RowBlock) -> None:
        """Add rows. REQUIRES: there is room."""
        start, stop = self.rows, self.rows + len(rows)
        self.block.put(slice(start, stop), rows)
        with uninterrupted(), self._lock:
            if not self._index.has_room(len(rows)):
                self._index = KeyIndex(max(stop, min(2 * stop, self.most)))
                self._index.put(self.block.keys, 0, start)
            self._index.put(self.block.keys, start, stop)
            self.rows = stop

    def find(self, keys: Keys) -> Positions:
        """Return the position of each key's row (n,), -1 if it has none here."""
        with uninterrupted(), self._lock:
            return self._index.find(self.block.keys, keys)

    def in_order(self) -> tuple[Ordered, Positions]:
        """Return the keys that have rows, in ascending order, and where these are."""
        keys = order_keys(self.block.keys[: self.rows], self.block.schema)
        places = np.argsort(keys, kind="stable")
        keys = keys[places]
        last = np.append(keys[1:] != keys[:-1], True)  # the last row of a key
        return (keys, places) if last.all() else (keys[last], places[last])


class Memory:
    """The memory that the memtables of a database share. Thread-safe.

    flush: writes the rows of the family that has the most to a file.
    """

    def __init__(self, most_bytes: int, flush_largest: Callable[[], None]) -> None:
        self.most_bytes, self.used = most_bytes, 0
        self._flush_largest = flush_largest
        self._lock, self._making_room = threading.Lock(), threading.Lock()

    def take(self, nbytes: int) -> None:
        """Take memory. If there is not enough, rows are written to files first. Raises ColdStoreError."""
        with uninterrupted(), self._making_room:
            while 0 < self.used > self.most_bytes - nbytes:
                self._flush_largest()
        self._add(nbytes)

    def give_back(self, nbytes: int) -> None:
        """Give memory back."""
        self._add(-nbytes)

    def _add(self, nbytes: int) -> None:
        with uninterrupted(), self._lock:
            self.used += nbytes
