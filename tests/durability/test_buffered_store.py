"""A cold store with memtables before it: nothing is lost, and a failure is told to the call that meets it."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of

from kvemb.backends.memory_store import MemoryStore
from kvemb.durability.buffered_store import BufferedStore
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.memory.memtables import MemtableMemory, row_bytes
from kvemb.rows.block import DIRTY, REMOVED


class Disk(MemoryStore):
    """A cold store whose disk may be full. writes: how many rows each write had."""

    full = False

    def __init__(self) -> None:
        super().__init__(SCHEMA)
        self.writes: list[int] = []

    def write(self, rows):
        if self.full:
            raise ColdStoreError("the disk is full")
        self.writes.append(len(rows))
        return super().write(rows)


def buffered(disk, rows=1000):
    memory = MemtableMemory(rows * row_bytes(SCHEMA))
    return BufferedStore(disk, SCHEMA, memory, Limits(batch_rows=8)), memory


def test_rows_are_there_at_once_and_written_together():
    disk = Disk()
    store, memory = buffered(disk)
    disk.write(rows_of([1, 2], 1.0))
    store.write(rows_of([2, 3], 2.0))
    store.write(rows_of([1], flags=DIRTY | REMOVED))
    assert store.have(np.arange(5)).tolist() == [False, False, True, True, False]
    assert values_of(disk.read(np.arange(5))[0]) == {1: 1.0, 2: 1.0}
    store.flush()
    assert values_of(disk.read(np.arange(5))[0]) == {2: 2.0, 3: 2.0}
    assert disk.writes == [2, 3]
    store.close()
    assert memory.used == 0


def test_memory_for_a_few_rows_is_enough():
    disk = Disk()
    store, memory = buffered(disk, rows=20)
    for start in range(0, 100, 5):
        store.write(rows_of(range(start, start + 5), 1.0))
        assert memory.used <= memory.total
    store.flush()
    assert values_of(disk.read(np.arange(200))[0]) == dict.fromkeys(range(100), 1.0)
    assert len(disk.writes) > 5


def test_what_is_cleared_is_gone():
    disk = Disk()
    store, memory = buffered(disk)
    disk.write(rows_of([1]))
    store.write(rows_of([2]))
    store.clear()
    assert not store.have(np.arange(5)).any()
    store.flush()
    assert (values_of(disk.read(np.arange(5))[0]), memory.used) == ({}, 0)


def test_a_full_disk_is_told_by_the_write_that_meets_it_and_by_the_flush():
    disk = Disk()
    store, memory = buffered(disk, rows=20)
    disk.full = True
    with pytest.raises(ColdStoreError, match="full"):
        store.write(rows_of(range(30)))
    with pytest.raises(ColdStoreError, match="full"):
        store.flush()
    store.close()
    assert memory.used == 0
