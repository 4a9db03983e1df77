"""Several hot tables seen as one: which one has a key, and where rows go."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of
from device_table import DeviceTable, SmallTable

from kvemb.backends.cpu import CpuTable
from kvemb.memory.budget import Budget
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import default_partitioner

KEYS = np.array([-7, -1, 0, 1, 2, 3, 2**63 - 1, -(2**63)])


def tables_of(count, capacity=64):
    tables = [CpuTable(SCHEMA, capacity, 16 * capacity) for _ in range(count)]
    return HotTables(tables, default_partitioner, SCHEMA.key_dtype, [Budget(64 << 20)] * count, min_rows=None)


def insert(hot_tables, rows):
    """Insert, and return the rows that left."""
    return [left for _, left in hot_tables.insert(rows, hot_tables.owners(rows.keys)) if len(left)]


def three_tiers(devices=1):
    """Devices of 16 rows each, over a table of 16 in the host's memory."""
    tables = [*(SmallTable(SCHEMA, 16, 16) for _ in range(devices)), CpuTable(SCHEMA, 16, 16)]
    budgets = [Budget(1 << 20)] * len(tables)
    return HotTables(tables, default_partitioner, SCHEMA.key_dtype, budgets, min_rows=None, host_tier=True)


def scored(keys, scores=0.0, *, dirty=False):
    """Rows of these keys, scores and flags; each embedding is made of its key."""
    rows = rows_of(keys)
    rows.scores[:], rows.flags[:] = scores, DIRTY * dirty
    rows.words[:] = rows.keys.view(np.uint64)[:, None]
    return rows


def where(hot_tables):
    """The keys in each table."""
    return [sorted(table.keys().tolist()) for table in hot_tables.tables]


def test_rows_that_leave_a_device_sink_and_only_then_leave():
    hot_tables = three_tiers()
    assert insert(hot_tables, scored(np.arange(20), np.arange(20))) == []
    assert where(hot_tables) == [list(range(4, 20)), [0, 1, 2, 3]]
    assert hot_tables.of_devices == hot_tables.tables[:1]
    left = insert(hot_tables, scored(np.arange(20, 40), np.arange(20, 40), dirty=True))
    assert where(hot_tables) == [list(range(24, 40)), list(range(8, 24))]
    assert left == [], "clean rows are forgotten"
    (left,) = insert(hot_tables, scored(np.arange(40, 60), np.arange(40, 60), dirty=True))
    assert left.keys.tolist() == [20, 21, 22, 23, 24, 25, 26, 27]
    owners = hot_tables.owners(np.array([59, 43, 5]))
    assert owners.tolist() == [0, 1, 0]
    assert hot_tables.partition.devices_of(np.array([59, 43, 5])) is None
    assert (hot_tables.find(np.array([59, 43, 5]), owners) >= 0).tolist() == [True, True, False]


def test_rows_below_that_are_used_move_up_if_they_outscore_what_leaves_for_them():
    hot_tables, keys = three_tiers(), np.arange(20)
    insert(hot_tables, scored(keys, 20.0 + keys, dirty=True))
    out = np.empty((3, 2), np.float32)
    used = np.array([0, 3, 19])
    assert len(hot_tables.lookup(used, hot_tables.owners(used), out, None, 0.0)) == 0
    assert not hot_tables.has_uses, "it is not a use"
    hot_tables.lookup(used, hot_tables.owners(used), out, ScoreRule.LAST_USE, 100.0)
    assert hot_tables.has_uses
    assert [len(left) for left in hot_tables.move_used_up()] == [0]
    assert not hot_tables.has_uses
    assert where(hot_tables) == [[0, 3, *range(6, 20)], [1, 2, 4, 5]]
    hot_tables.lookup(np.array([1]), np.array([1]), out[:1], ScoreRule.LAST_USE, 1.0)
    assert [len(left) for left in hot_tables.move_used_up()] == []
    assert where(hot_tables)[1] == [1, 2, 4, 5], "1 was used long ago"
    rows = next(iter(hot_tables.read(hot_tables.find(keys, np.zeros(20)), np.zeros(20))))
    assert (rows.words == rows.keys.view(np.uint64)[:, None]).all()


def test_rows_that_cannot_sink_are_handed_on(monkeypatch):
    hot_tables = three_tiers()
    insert(hot_tables, scored(np.arange(16), 1.0, dirty=np.arange(16) % 2 == 0))

    def full(*_, **__):
        raise MemoryError("the host's memory is full")

    monkeypatch.setattr(hot_tables.tables[-1], "insert", full)
    rows, left = scored(np.arange(100, 104), 2.0), []
    with pytest.raises(MemoryError):
        left.extend(leaving for _, leaving in hot_tables.insert(rows, np.zeros(4, np.int64)))
    assert [block.keys.tolist() for block in left] == [[0, 2]], "1 and 3 are clean"


def test_a_bag_whose_keys_are_in_one_table_is_pooled_there():
    hot_tables, keys = three_tiers(2), np.arange(0, 40, 2)
    insert(hot_tables, scored(keys, np.arange(20)))
    out, none = np.zeros((1, 2), np.float32), np.empty(0, np.float32)
    for chosen, missing in (([38, 36], []), ([0, 2], []), ([38, 0], [0, 1])):
        wanted = np.array(chosen)
        bags = Bags(np.array([0, 2]), none, none, np.inf)
        found = hot_tables.pool(wanted, hot_tables.owners(wanted), bags, None, out, ScoreRule.COUNT, 0.0)
        assert found.tolist() == missing
    assert hot_tables.has_uses


def test_a_bag_in_two_tiers_is_pooled_on_the_device():
    hot_tables, keys = three_tiers(), np.arange(20)
    rows = scored(keys, 20.0 + keys)
    rows.values[:] = np.stack([keys, 100 * keys], 1)
    insert(hot_tables, rows)
    out, none = np.zeros((2, 2), np.float32), np.empty(0, np.float32)
    bags, wanted = Bags(np.array([0, 3, 5]), none, none, np.inf), np.array([19, 0, 0, 3, 99])
    owners = hot_tables.owners(wanted)
    assert hot_tables.pool(wanted, owners, bags, None, out, ScoreRule.COUNT, 0.0).tolist() == [4]
    assert out[0].tolist() == [19, 1900]
    beside = RowsBeside(np.array([-1, -1, -1, -1, 0]), np.array([[0.5, 0.25]], np.float32))
    assert hot_tables.pool(wanted, owners, bags, beside, out, None, 0.0).tolist() == []
    assert out.tolist() == [[19, 1900], [3.5, 300.25]]
    cells = hot_tables.find(keys, hot_tables.owners(keys))
    scores = hot_tables.scores(cells, hot_tables.owners(keys))
    assert scores[[0, 3, 19, 18]].tolist() == [22, 24, 40, 38]
    assert hot_tables.has_uses


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


def test_a_device_that_shrinks_gives_its_dirty_rows_to_the_table_below():
    tables = [DeviceTable(SCHEMA, 64, 64), CpuTable(SCHEMA, 32, 32)]
    budgets = [Budget(1 << 20), Budget(1 << 20)]
    for table, budget in zip(tables, budgets, strict=True):
        budget.reserve(table.nbytes, "cells")
    hot_tables = HotTables(tables, default_partitioner, SCHEMA.key_dtype, budgets, min_rows=16, host_tier=True)
    tables[0].insert(scored(np.arange(60), dirty=True))
    (share,) = budgets[0].rebalancer.shares
    share.ask(share.held // 2)
    left = sum(map(len, hot_tables.shrink()))
    assert (tables[0].size, tables[1].size) == (32, 28)
    assert left == 0, "there is room below"
    assert budgets[0].free == (1 << 20) - tables[0].nbytes
