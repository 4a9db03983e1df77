"""Several hot tables seen as one: which one has a key, and where rows go."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of

from kvemb.backends.cpu import CpuTable
from kvemb.memory.budget import Budget
from kvemb.rows.block import DIRTY
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Partition, default_partitioner

KEYS = np.array([-7, -1, 0, 1, 2, 3, 2**63 - 1, -(2**63)])


def tables_of(count, capacity=64):
    tables = [CpuTable(SCHEMA, capacity, 16 * capacity) for _ in range(count)]
    partition = Partition(default_partitioner, SCHEMA.key_dtype, count)
    return HotTables(tables, partition, [Budget(64 << 20)] * count, min_rows=None)


def insert(hot_tables, rows):
    """Insert, and return the rows that left."""
    return [left for _, left in hot_tables.insert(rows, hot_tables.owners(rows.keys)) if len(left)]


def scored(keys, scores=0.0, *, dirty=False):
    """Rows of these keys, scores and flags; each embedding is made of its key."""
    rows = rows_of(keys)
    rows.scores[:], rows.flags[:] = scores, DIRTY * dirty
    rows.words[:] = rows.keys.view(np.uint64)[:, None]
    return rows


def test_rows_go_to_the_table_of_their_key():
    hot_tables = tables_of(3)
    assert insert(hot_tables, scored(KEYS)) == []
    for number, table in enumerate(hot_tables.tables):
        owned = [int(key) for key in KEYS if key % 3 == number]
        assert sorted(table.keys().tolist()) == sorted(owned)
    assert hot_tables.size == len(KEYS)
    assert hot_tables.nbytes == sum(table.nbytes for table in hot_tables.tables)
    sought = np.concatenate([KEYS, [99]])
    cells = hot_tables.find(sought, hot_tables.owners(sought))
    assert (cells[:-1] >= 0).all()
    assert cells[-1] == -1
    assert sorted(int(at) for _, positions in hot_tables.by_table(hot_tables.owners(KEYS)) for at in positions) == list(
        range(len(KEYS))
    )


def test_rows_are_removed_from_all_tables_or_from_none(monkeypatch):
    hot_tables = tables_of(2)
    insert(hot_tables, scored(KEYS))

    def fail(keys):
        raise MemoryError

    owners = hot_tables.owners(KEYS)
    with monkeypatch.context() as patch:
        patch.setattr(hot_tables.tables[1], "find", fail)
        with pytest.raises(MemoryError):
            hot_tables.remove(KEYS, owners)
    assert (hot_tables.find(KEYS, owners) >= 0).all()
    hot_tables.remove(KEYS, owners)
    assert hot_tables.size == 0


def test_one_table_takes_whole_batches():
    hot_tables = tables_of(1)
    assert hot_tables.owners(KEYS) is None
    assert [positions for _, positions in hot_tables.by_table(hot_tables.owners(KEYS))] == [slice(None)]
    assert len(hot_tables.find(np.empty(0, np.int64), None)) == 0


def test_rows_that_leave_are_gathered_from_every_table():
    hot_tables = tables_of(2, capacity=16)
    left = insert(hot_tables, scored(np.arange(200), dirty=True))
    assert hot_tables.size + sum(map(len, left)) == 200
    assert hot_tables.size == 32
