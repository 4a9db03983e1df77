"""Dirty rows on their way to the cold store: readable until it has them, whatever becomes of the write."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, Later, Now, rows_of, values_of

from kvemb.backends.memory import MemoryStore
from kvemb.errors import ColdStoreError
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.tiers.spill import Pile, SpillBuffer


class Spilled:
    """A buffer of piles of four rows over a cold store. told: keys of piles that the cold store has taken."""

    def __init__(self, executor=None):
        self.cold, self.told, self.failure = MemoryStore(SCHEMA), [], None
        self.executor = executor or Now()
        self.buffer = SpillBuffer(SCHEMA, 4, self.executor, self.write, lambda keys: self.told.extend(keys.tolist()))

    def write(self, rows):
        if self.failure is not None:
            raise self.failure
        self.cold.write(rows)

    def append(self, keys, value=1.0, flags=DIRTY):
        self.buffer.append([rows_of(keys, value, flags=flags)])

    def read(self, keys):
        into = RowBlock(SCHEMA, len(keys))
        known, exists = self.buffer.read(np.array(keys), into)
        return known.tolist(), exists.tolist(), values_of(into.select(exists))


def test_rows_can_be_read_from_memory_before_they_are_written():
    spilled = Spilled(Later())
    spilled.append([1, 2, 3, 4], 1.0)
    spilled.append([5, 2], 2.0)  # the first pile is being written
    assert spilled.read([1, 2, 5, 6]) == (
        [True, True, True, False],
        [True, True, True, False],
        {1: 1.0, 2: 2.0, 5: 2.0},
    )
    assert not spilled.cold.read(np.array([1]))[1].any()


def test_a_removal_is_known_and_no_row():
    spilled = Spilled()
    spilled.append([1])
    spilled.append([1], flags=DIRTY | REMOVED)
    assert spilled.read([1]) == ([True], [False], {})


def test_what_is_drained_is_in_the_cold_store_and_told():
    spilled = Spilled()
    spilled.append([3, 1], 1.0)
    spilled.append([2, 1], 2.0)
    spilled.append([1], 3.0)
    spilled.buffer.drain()
    assert spilled.buffer.rows == 0
    assert values_of(spilled.cold.read(np.array([1, 2, 3]))[0]) == {1: 3.0, 2: 2.0, 3: 1.0}
    assert set(spilled.told) == {1, 2, 3}


def test_a_row_that_is_hot_again_is_forgotten_unless_it_is_being_written():
    spilled = Spilled(Later())
    spilled.append([1, 2, 3, 4])
    spilled.append([5])
    spilled.buffer.discard(np.array([1, 5, 77]))
    assert spilled.read([1, 5])[0] == [True, False]
    spilled.executor.go()
    spilled.buffer.poll()
    assert spilled.buffer.rows == 0
    assert spilled.cold.read(np.array([1, 5]))[1].tolist() == [True, False]


def test_rows_of_a_write_that_failed_stay_and_those_that_come_are_kept_too():
    spilled = Spilled()
    spilled.failure = ColdStoreError("full")
    spilled.append([1, 2, 3, 4])
    with pytest.raises(ColdStoreError, match="full"):
        spilled.append(list(range(5, 15)))
    assert all(spilled.read(list(range(1, 15)))[1])
    for write in (spilled.buffer.poll, spilled.buffer.drain, spilled.buffer.clear, spilled.buffer.start_write):
        with pytest.raises(ColdStoreError, match="full"):
            write()
    assert spilled.buffer.rows == 14


def test_what_begins_to_be_written_can_be_waited_for():
    spilled = Spilled(Later())
    assert spilled.buffer.start_write() is None
    spilled.append([1])
    writing = spilled.buffer.start_write()
    assert not writing.done()
    spilled.executor.go()
    assert writing.done()
    spilled.buffer.wait_for_write()
    assert spilled.told == [1]


def test_what_is_cleared_never_reaches_the_cold_store():
    spilled = Spilled()
    spilled.append([1, 2])
    spilled.buffer.clear()
    spilled.buffer.drain()
    assert spilled.read([1])[0] == [False]
    assert not spilled.cold.read(np.array([1]))[1].any()


def test_a_pile_is_compacted_in_place_and_keeps_what_is_live():
    pile = Pile(SCHEMA, 3000)  # more than are moved at a time
    pile.append(rows_of(np.arange(3000)))
    pile.discard(np.arange(0, 3000, 2))
    rows = pile.compacted()
    assert rows.keys.tolist() == list(range(1, 3000, 2))
    assert np.shares_memory(rows.keys, pile.block.keys)
    assert pile.room == 1500
    assert pile.find(np.array([0, 1, 2999])).tolist() == [-1, 0, 1499]
    larger = pile.enlarged(10)
    assert larger.room == 10
    assert larger.find(np.array([2999])).tolist() == [1499]
