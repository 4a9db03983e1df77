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


class Pool(GrowingPart):
    """A part of the budget that holders take and give back. Thread-safe.

    If a holder finds too few bytes, the pool grows for those that come later.
    """

    def take(self, nbytes: int, held: int) -> bool:
        """Take nbytes for a holder of `held` bytes, if it then has no more than it leaves free; return whether."""
        with uninterrupted(), self._lock:
            if nbytes <= self.available(held):
                self.used += nbytes
                return True
            self._grow()
            return False

    def available(self, held: int) -> int:
        """Return the most bytes that a holder of `held` bytes may take now."""
        return max(0, (self.free - held) // 2)

    def give_back(self, nbytes: int) -> None:
        """Give nbytes back."""
        with uninterrupted(), self._lock:
            self.used -= nbytes


class Holding:
    """What one holder has of a pool. held: its bytes. Only one thread at a time uses it."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.held = pool, 0

    @property
    def available(self) -> int:
        """The most bytes that take() would grant now."""
        return self.pool.available(self.held)

    def take(self, nbytes: int) -> bool:
        """Take nbytes if they are available; return whether they were taken."""
        taken = self.pool.take(nbytes, self.held)
        self.held += nbytes if taken else 0
        return taken

    def give_back(self, nbytes: int) -> None:
        """Give back nbytes of those held."""
        self.held -= nbytes
        self.pool.give_back(nbytes)


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
        self.read = Pool(most // 2, most, more)
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
