"""The slots of a spill buffer: filled from the lowest, given back from the highest, and paid for."""

from __future__ import annotations

from blocks import SCHEMA

from kvemb.memory.budget import Budget
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import table_size
from kvemb.tiers.spill_slots import SpillSlots, slot_bytes

SLOT = slot_bytes(SCHEMA, 4)


def test_a_slot_pays_for_its_share_of_the_index_however_many_there_are():
    for rows in range(64, 5000):
        beside = slot_bytes(SCHEMA, rows) - rows * (RowBlock.bytes_per_row(SCHEMA) + 1)
        assert 4 * table_size(2 * rows) <= beside


def test_slots_are_taken_from_the_lowest_as_long_as_there_is_memory():
    lease = Budget(3 * SLOT).lease()
    slots = SpillSlots(SCHEMA, 4, 100, lease)
    assert slots.available == 2 + 3
    assert [slots.take() for _ in range(6)] == [0, 1, 2, 3, 4, None]
    assert (slots.available, slots.leased, lease.held) == (0, 5, 3 * SLOT)
    slots.free += [3, 1]
    assert slots.available == 2
    assert slots.take() == 1


def test_there_are_no_more_slots_than_were_asked_for():
    slots = SpillSlots(SCHEMA, 4, 3, Budget(100 * SLOT).lease())
    assert [slots.take() for _ in range(4)] == [0, 1, 2, None]
    assert len(slots.block) == 3 * 4


def test_rows_fit_into_the_slots_that_memory_is_available_for():
    budget = Budget(3 * SLOT)
    lease = budget.lease()
    slots = SpillSlots(SCHEMA, 4, 100, lease)
    assert slots.can_hold(5 * 4)
    assert not slots.can_hold(5 * 4 + 1)
    assert lease.held == 0, "nothing was taken"
    assert not SpillSlots(SCHEMA, 4, 4, lease).can_hold(4 * 4 + 1)


def test_free_slots_are_given_back_from_the_highest():
    budget = Budget(3 * SLOT)
    lease = budget.lease()
    slots = SpillSlots(SCHEMA, 4, 100, lease)
    for _ in range(5):
        slots.take()
    slots.free += [4, 2, 1]
    slots.give_back(all_idle=False)
    assert lease.held == 3 * SLOT, "none is owed"
    slots.give_back(all_idle=True)
    assert (slots.leased, slots.free, lease.held) == (4, [2, 1], 2 * SLOT)
    assert not slots.can_give_back(all_idle=True), "the highest is in use"
    slots.free.append(3)
    assert not budget.try_grow(2 * SLOT)
    assert lease.owed == SLOT
    slots.give_back(all_idle=False)
    assert (slots.leased, lease.held, lease.owed) == (3, SLOT, 0), "no more than is owed"
    slots.free.append(0)
    slots.give_back(all_idle=True)
    assert (slots.leased, slots.free, lease.held) == (2, [1, 0], 0), "two are the buffer's own"
