"""The slots of a spill buffer: which of them have memory, which are free, and the lease that pays for it.

The variable's lock guards everything here.
"""

from __future__ import annotations

from kvemb.memory.lease import Lease
from kvemb.rows.block import ReservedBlock, RowBlock
from kvemb.rows.schema import Schema

# Slots that a buffer has from the start: one to fill and one to write.
OWN_SLOTS = 2
# Bytes per row beside its block: the live flag, and at most eight cells of an index made for twice the rows.
_INDEX_BYTES = 1 + 32


def slot_bytes(schema: Schema, slot_rows: int) -> int:
    """Return the bytes of memory that a slot takes."""
    return slot_rows * (RowBlock.bytes_per_row(schema) + _INDEX_BYTES)


class SpillSlots:
    """At most `most` slots of slot_rows rows each, one after the other in one block.

    lease: pays for all slots but OWN_SLOTS. leased: slots below this number have memory. free: those of them that hold
    no rows. The free slot with the lowest number is filled next, because slots are given back from the highest.
    """

    def __init__(self, schema: Schema, slot_rows: int, most: int, lease: Lease) -> None:
        self.most = max(OWN_SLOTS, most)
        self.block = ReservedBlock(schema, self.most * slot_rows)
        self.free = list(range(OWN_SLOTS))
        self.leased = OWN_SLOTS
        self._slot_rows, self._slot_bytes, self._lease = slot_rows, slot_bytes(schema, slot_rows), lease

    @property
    def available(self) -> int:
        """Slots that are free, and those that the available memory is enough for."""
        return len(self.free) + min(self.most - self.leased, self._lease.available // self._slot_bytes)

    def can_hold(self, rows: int) -> bool:
        """Whether the slots could hold so many rows. If not, lessees that hold much more are asked for memory."""
        lacking = -(-rows // self._slot_rows) - self.leased
        if lacking <= min(self.most - self.leased, self._lease.available // self._slot_bytes):
            return True
        if self.leased + lacking <= self.most and self._lease.take(lacking * self._slot_bytes):
            self._lease.give_back(lacking * self._slot_bytes)
        return False

    def take(self) -> int | None:
        """Take a free slot; return its number, or None if there is none and no memory for one more."""
        if not self.free:
            if self.leased == self.most or not self._lease.take(self._slot_bytes):
                return None
            self.free.append(self.leased)
            self.leased += 1
        slot = min(self.free)
        self.free.remove(slot)
        return slot

    def can_give_back(self, *, all_idle: bool) -> bool:
        """Whether give_back() would give back any slot."""
        return (all_idle or self._lease.owed > 0) and self.leased > OWN_SLOTS and self.leased - 1 in self.free

    def give_back(self, *, all_idle: bool) -> None:
        """Give back the highest-numbered slots as far as they are free: all of them, or those that the lease owes."""
        while self.can_give_back(all_idle=all_idle):
            self.leased -= 1
            self.free.remove(self.leased)
            self.block.release(self.leased * self._slot_rows, (self.leased + 1) * self._slot_rows)
            self._lease.give_back(self._slot_bytes)
