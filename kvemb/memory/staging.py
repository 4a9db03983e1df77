"""Staging: the part of a store's budget for rows that are in no cell.

No holder is asked to give memory back. Instead, no holder gets more than it leaves free, so the next one always finds
some.
"""

from __future__ import annotations

from collections.abc import Callable

from kvemb.limits import Limits
from kvemb.memory.budget import GrowingPart
from kvemb.memory.memtables import MemtableMemory
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import uninterrupted


class Holding:
    """What one holder has of a part of the budget that several share. held: its bytes. One thread at a time uses it.

    A holder gets at most as much as it leaves free. If it finds too few bytes, the part grows for those that come
    later.
    """

    def __init__(self, part: GrowingPart) -> None:
        self._part, self.held = part, 0

    @property
    def available(self) -> int:
        """The most bytes that take() would grant now."""
        return max(0, (self._part.free - self.held) // 2)

    def take(self, nbytes: int) -> bool:
        """Take nbytes if they are available; return whether they were taken."""
        with uninterrupted(), self._part.lock:
            if nbytes > self.available:
                self._part.grow()
                return False
            self._part.used += nbytes
            self.held += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Give back nbytes of those held."""
        with uninterrupted(), self._part.lock:
            self._part.used -= nbytes
            self.held -= nbytes


class Staging:
    """What a store has for rows that are in no cell, of a budget of so many bytes.

    read: for rows that were read, for their update or ahead, and for a snapshot's copies. memtables: for rows that are
    in no file yet. more: see GrowingPart.
    """

    MOST_READ, MOST_MEMTABLES = 512 << 20, 128 << 20
    # A variable's own copies take at most 1/COPIES_PART of the budget, so that there is room for many variables.
    COPIES_PART = 4096

    def __init__(self, memory_budget: int, more: Callable[[int], bool] = lambda nbytes: False) -> None:
        self._most_copies = memory_budget // self.COPIES_PART
        most = min(memory_budget // 8, self.MOST_READ)
        self.read = GrowingPart(most // 2, most, more)
        most = min(memory_budget // 4, self.MOST_MEMTABLES)
        self.memtables = MemtableMemory(most // 2, most, more)

    @property
    def total(self) -> int:
        """The bytes of all this."""
        return self.read.total + self.memtables.total

    def own_copies(self, schema: Schema, limits: Limits) -> int:
        """Return how many rows a snapshot of a variable may always copy. The variable reserves memory for them."""
        affordable = self._most_copies // RowBlock.bytes_per_row(schema)
        return max(limits.min_own_copies, min(limits.max_own_copies, affordable))

    def reserve_bytes(self, schema: Schema, limits: Limits) -> int:
        """Return the bytes of the budget that these copies take, which are no part of `total`."""
        return self.own_copies(schema, limits) * RowBlock.bytes_per_row(schema)
