"""Rows on a device, in the host's memory below it, and on disk: what a store of three tiers gives, writes and says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import SCHEMA, nothing_grows
from device_table import DeviceTable, SmallTable

import kvemb
from kvemb import registry
from kvemb.backends.cpu import CpuTable
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.memory.budget import Budget
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.tiers.gpu_tables import TieredGpuTables
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Partition, default_partitioner
from tests.histories import small_spill
from tests.tiers.test_hot_tables import insert, scored

KEYS = 400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kvemb.Store]:
    """A store whose budget is nearly spent; a device has 16 rows."""
    monkeypatch.setitem(registry.hot_backends, "gpu", "device_table:SmallTable")
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", limits=Limits(**small_spill(8))) as store:
        host = inside(store).budgets.host
        plain = made(store, "plain", hot_rows=KEYS)
        store.get_variable("other", dim=8, hot_rows=(host.free - host.total // 32) // (8 * 4 + 26))
        nothing_grows(store)
        tiered = made(store, "tiered", devices="gpu:0", init_size=1)
        assert [table.capacity_rows for table in tables(tiered).tables] == [16, 16]
        assert len(plain.tables) == len(tiered.tables) == 1
        fixed = made(store, "fixed", devices="gpu:0", hot_rows=16)
        assert len(tables(fixed).tables) == 1, "with a number of rows there is none below"
        yield store
        store.check()


def made(store: kvemb.Store, name: str, **how: Any) -> kvemb.Variable:
    start, rule = kvemb.RandomNormal(0.0, 1.0, seed=3), kvemb.optimizers.Adagrad(0.1)
    policy = kvemb.TimestampRestrictPolicy(clock="steps")
    return store.get_variable(name, dim=4, initializer=start, optimizer=rule, restrict_policy=policy, **how)


def tables(variable: kvemb.Variable) -> HotTables:
    return inside(variable).hot_tables


def train(store: kvemb.Store, chance: Any, steps: int) -> None:
    """The same steps on both variables, whose rows must stay equal."""
    plain, tiered = (store.variables[name] for name in ("plain", "tiered"))
    for _ in range(steps):
        keys = chance.zipf(1.2, 25) % KEYS
        grads = chance.normal(size=(25, 4)).astype(np.float32)
        assert plain.lookup(keys).tobytes() == tiered.lookup(keys).tobytes()
        for variable in (plain, tiered):
            variable.apply_gradients(keys, grads)


def assert_equal(store: kvemb.Store) -> None:
    """Assert that both variables have the same rows, slots and scores."""
    one, other = (store.variables[name].export(with_slots=True, with_scores=True) for name in ("plain", "tiered"))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_equal(mine, theirs)


@pytest.mark.slow
def test_rows_move_up_and_down_and_are_the_same_also_in_checkpoints_that_are_written_meanwhile(
    store: kvemb.Store, tmp_path: Path
) -> None:
    chance, pending = np.random.default_rng(1), []
    for turn in range(5):
        train(store, chance, 10)
        pending.append(store.checkpoint(tmp_path / f"{turn}", block=False))
    train(store, chance, 10)
    device, below = tables(store.variables["tiered"]).tables
    assert (device.size, below.size) == (16, 16)
    assert not np.isin(device.keys(), below.keys()).any()
    assert store.variables["tiered"].stats.rows_hot == 32
    assert device.scores(device.occupied()).min() >= np.median(below.scores(below.occupied()))
    assert_equal(store)
    sizes = []
    for taken in pending:
        with kvemb.open(taken.result(), read_only=True) as checkpoint:
            assert_equal(checkpoint)
            sizes.append(checkpoint.variables["tiered"].size())
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def three_tiers(devices=1):
    """Devices of 16 rows each, over a table of 16 in the host's memory."""
    tables = [*(SmallTable(SCHEMA, 16, 16) for _ in range(devices)), CpuTable(SCHEMA, 16, 16)]
    budgets = [Budget(1 << 20)] * len(tables)
    partition = Partition(default_partitioner, SCHEMA.key_dtype, devices)
    return TieredGpuTables(tables, partition, budgets, min_rows=None)


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
    assert not hot_tables.used, "it is not a use"
    hot_tables.lookup(used, hot_tables.owners(used), out, ScoreRule.LAST_USE, 100.0)
    assert hot_tables.used
    assert hot_tables.memory.has_work, "the next call moves them"
    assert [len(left) for left in hot_tables.make_due_moves()] == [0]
    assert not hot_tables.used
    assert where(hot_tables) == [[0, 3, *range(6, 20)], [1, 2, 4, 5]]
    hot_tables.lookup(np.array([1]), np.array([1]), out[:1], ScoreRule.LAST_USE, 1.0)
    assert [len(left) for left in hot_tables.make_due_moves()] == []
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
    assert hot_tables.used


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
    assert hot_tables.used


def test_a_device_that_shrinks_gives_its_dirty_rows_to_the_table_below():
    tables = [DeviceTable(SCHEMA, 64, 64), CpuTable(SCHEMA, 32, 32)]
    budgets = [Budget(1 << 20), Budget(1 << 20)]
    for table, budget in zip(tables, budgets, strict=True):
        budget.reserve(table.nbytes, "cells")
    partition = Partition(default_partitioner, SCHEMA.key_dtype, 1)
    hot_tables = TieredGpuTables(tables, partition, budgets, min_rows=16)
    tables[0].insert(scored(np.arange(60), dirty=True))
    (share,) = budgets[0].rebalancer.shares
    share.ask(share.held // 2)
    left = sum(map(len, hot_tables.make_due_moves()))
    assert (tables[0].size, tables[1].size) == (32, 28)
    assert left == 0, "there is room below"
    assert budgets[0].free == (1 << 20) - tables[0].nbytes
