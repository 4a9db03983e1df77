"""Dropping a variable: it is gone from memory, disk, deltas and followers, or, after a crash, there as it was."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import threading
import time
import weakref
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.durability import inventory, layout, points
from kvemb.durability.point_writer import PointWriter
from kvemb.errors import Closed, ColdStoreError, Poisoned, ReadOnly
from kvemb.handle import inside

BUDGET = "8MiB"
FULL = Mock(side_effect=ColdStoreError("No space left on device"))
DIM = 4


def fill(store: kvemb.Store, name: str, count: int = 500, value: float = 1.0, dim: int = DIM) -> kvemb.Variable:
    table = store.get_variable(name, dim=dim, hot_rows=128)
    table.upsert(np.arange(count), np.full((count, dim), value, np.float32))
    return table


def tables_bytes(store: kvemb.Store) -> int:
    point = layout.current_point(store.path)
    return sum(file.stat().st_size for file in (point / "rows").glob("*.sst"))


def test_a_dropped_variable_leaves_no_object(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "kept")
    table = inside(fill(store, "users"))
    store.flush()
    parts = table, table.operations, table.storage, table.storage.cold, table.hot_tables, *table.hot_tables.tables
    left = [weakref.ref(part) for part in parts]
    del table, parts
    store.drop_variable("users")
    gc.collect()
    assert [part() for part in left] == [None] * len(left)


@pytest.mark.independent
@pytest.mark.parametrize("durability", ["checkpoint", "write"])
@pytest.mark.parametrize("when", ["new", "flushed", "not opened"])
def test_a_dropped_variable_is_gone_and_all_it_took_is_free(open_store, tmp_path, durability, when):
    store = open_store(tmp_path / "store", durability=durability)
    fill(store, "kept")
    store.flush()
    free, nbytes = store.budget.free, tables_bytes(store)
    table = fill(store, "users")
    if when != "new":
        store.flush()
    if when == "not opened":
        store.close()
        store = open_store(tmp_path / "store", durability=durability)
        store.get_variable("kept", hot_rows=128)
    store.drop_variable("users")
    assert list(store.variables) == ["kept"]
    if when != "not opened":
        assert store.budget.free == free
        assert store.get_collection("variables") == [store.variables["kept"]]
    assert tables_bytes(store) <= nbytes
    assert (store.variables["kept"].lookup(np.arange(500)) == 1).all()
    for call in (
        lambda: table.lookup([1]), lambda: table.upsert([1], np.ones((1, DIM), np.float32)), table.size,
        table.export, table.clear, lambda: table.accum([1], [[1] * DIM], [[1] * DIM], [True]),
        lambda: table.prefetch([1]), lambda: next(iter(table.export_batches(3))), lambda: table.remove([1]),
    ):  # fmt: skip
        with pytest.raises(Closed, match="is closed" if when == "not opened" else "'users' was dropped from the store"):
            call()
    assert "closed" in repr(table)
    assert table.stats.rows == 500
    with pytest.raises(KeyError, match="no variable 'users'; there is kept"):
        store.drop_variable("users")
    store.check(deep=True)
    fill(store, "users", 3, 2.0, dim=2)
    store.close()
    assert kvemb.verify(tmp_path / "store", deep=True)
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as again:
        assert again.variables["users"].export()[1].tolist() == [[2, 2]] * 3
        again.drop_variable("users")
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as again:
        assert list(again.variables) == ["kept"]


CALLS = {
    "lookup": [1],
    "upsert": ([1], [[1.0] * DIM]),
    "accum": ([1], [[1.0] * DIM], [[1.0] * DIM], [True]),
    "apply_gradients": ([1], [[1.0] * DIM]),
    "get_slot_variables": (),
    "lookup_slot": ("accumulator", [1]),
    "remove": [1],
    "clear": (),
    "restrict": (1,),
    "size": (),
    "export": (),
    "export_batches": (),
    "prefetch": ([1],),
}
GONE = {"optimizer", "max_rows", "ttl", "tables"}
STAYING = {"name", "dim", "key_dtype", "value_dtype", "devices", "partitioner"}
STAYING |= {"restrict_policy", "trainable", "initializer", "bp_v2", "persistent", "resource_handle", "stats"}


@pytest.mark.parametrize("how", ["dropped", "closed"])
@pytest.mark.parametrize("policy", [None, kvemb.FrequencyRestrictPolicy()])
def test_every_call_of_a_variable_that_is_gone_raises_closed_and_what_describes_it_stays(store, how, policy):
    """restrict() without a policy warned, and get_slot_variables() returned slots."""
    optimizer = kvemb.optimizers.Adagrad()
    table = store.get_variable("users", dim=DIM, hot_rows=128, optimizer=optimizer, restrict_policy=policy)
    (slot,) = table.get_slot_variables()
    table.upsert([1], [[1.0] * DIM])
    store.drop_variable("users") if how == "dropped" else store.close()
    calls = [lambda name=name, given=given: getattr(table, name)(*given) for name, given in CALLS.items()]
    calls += [lambda: slot.lookup([1]), slot.size, lambda: table.size(7), lambda: table.restrict(-1)]
    calls += [lambda: setattr(table, "max_rows", 1), lambda: setattr(table, "ttl", None)]
    calls += [lambda: setattr(table, "optimizer", optimizer), lambda: pickle.dumps(table)]
    if policy is not None:
        calls += [lambda: table.restrict_policy.status([1]), lambda: table.restrict_policy.apply_update([1])]
    for call in calls:
        with pytest.raises(Closed, match=f"is {how}|was {how}"):
            call()
    for name in STAYING | (GONE if how == "closed" else set()):
        getattr(table, name)
    for name in GONE if how == "dropped" else ():
        with pytest.raises(Closed, match="'users' was dropped"):
            getattr(table, name)
    assert (table.name, table.dim, table.stats.rows) == ("users", DIM, 1)
    public = {name for name in vars(kvemb.Variable) if not name.startswith("_")}
    assert public == {*CALLS, *GONE, *STAYING}


def test_a_variable_in_memory_is_dropped_without_a_point(store):
    store.get_variable("scratch", dim=2, kv_creator=kvemb.MemoryCreator()).upsert([1], [[1.0, 1.0]])
    before = layout.current_point(store.path)
    store.drop_variable("scratch")
    assert layout.current_point(store.path) == before
    assert list(store.variables) == []


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_a_crash_between_any_steps_leaves_it_whole_or_gone(monkeypatch, open_store, tmp_path, durability):
    store = open_store(tmp_path / "store", durability=durability)
    fill(store, "users")
    fill(store, "kept")
    store.flush()
    fill(store, "users", 700, 2.0)
    crashes = []

    def copying(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            for step in ("before", "after"):
                if step == "after":
                    result = real(*arguments, **named)
                crashes.append(tmp_path / f"crash-{len(crashes)}")
                shutil.copytree(store.path, crashes[-1], ignore=shutil.ignore_patterns("live"))
                (crashes[-1] / "live").mkdir()
            return result

        return call

    monkeypatch.setattr(inventory.Inventory, "take", copying(inventory.Inventory.take))
    monkeypatch.setattr(layout, "set_current", copying(layout.set_current))
    monkeypatch.setattr(type(inside(store).database), "drop", copying(type(inside(store).database).drop))
    store.drop_variable("users")
    monkeypatch.undo()
    states = []
    for crash in crashes:
        with kvemb.open(crash, memory_budget=BUDGET) as opened:
            opened.check(deep=True)
            assert opened.variables["kept"].size() == 500
            users = opened.variables.get("users")
            states.append(None if users is None else (users.size(), float(users.lookup([3])[0, 0])))
    whole = (700, 2.0) if durability == "write" else (500, 1.0)
    assert set(states) == {whole, None}
    assert states == sorted(states, key=lambda state: state is None), "once gone, it stays gone"


def test_where_the_disk_refuses_it_is_still_there(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store")
    table = fill(store, "users")
    store.flush()

    with monkeypatch.context() as patch:
        patch.setattr(points.layout, "set_current", FULL)
        with pytest.raises(Poisoned, match="No space left"):
            store.drop_variable("users")
    assert (table.lookup(np.arange(500)) == 1).all()
    store.close()
    with kvemb.open(store.path, memory_budget=BUDGET) as again:
        assert again.variables["users"].size() == 500


def test_one_that_cannot_be_deleted_from_the_database_is_in_no_later_point(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store")
    store.get_variable("table", dim=1).upsert([1], [[1.0]])

    with monkeypatch.context() as broken:
        broken.setattr(inside(store).database, "drop", FULL)
        with pytest.raises(Poisoned, match="No space left"):
            store.drop_variable("table")
    store.close()
    assert list(open_store(tmp_path / "store").variables) == []


def test_only_who_may_write_drops(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "users")
    store.flush()
    with kvemb.open(store.path, follow=True) as reader, pytest.raises(ReadOnly):
        reader.drop_variable("users")
    store.close()
    with pytest.raises(Closed):
        store.drop_variable("users")


def test_no_write_that_was_acknowledged_comes_after_it(open_store, tmp_path):
    """With a log, an entry of a variable that is gone would make it unreadable."""
    store = open_store(tmp_path / "store", durability="write")
    for name in ("users", "kept"):
        fill(store, name)
    ended: dict[str, str] = {}

    def write(table: kvemb.Variable) -> None:
        chance = np.random.default_rng(1)
        try:
            while True:
                table.upsert(chance.integers(0, 2000, 64), np.ones((64, DIM), np.float32))
        except Closed as error:
            ended[table.name] = str(error)

    threads = [threading.Thread(target=write, args=(store.variables[name],)) for name in ("users", "kept", "users")]
    for thread in threads:
        thread.start()
    store.drop_variable("users")
    threads[0].join()
    threads[2].join()
    crash = tmp_path / "crash"
    store.drop_variable("kept")
    threads[1].join()
    assert all("was dropped" in why for why in ended.values())
    assert set(ended) == {"users", "kept"}
    shutil.copytree(store.path, crash, ignore=shutil.ignore_patterns("live"))
    with kvemb.open(crash, memory_budget=BUDGET) as again:
        assert list(again.variables) == []


# Deltas and followers.


def told(later: kvemb.Checkpoint, since: kvemb.Checkpoint, **how: Any) -> dict[str, Any]:
    """By variable: the keys, the values and the removed keys of all its changes."""
    found: dict[str, Any] = {}
    for change in later.changes(since, **how):
        parts = found.setdefault(change.variable, ([], [], []))
        for part, array in zip(parts, (change.keys, change.values, change.removed), strict=True):
            part += array.tolist()
    return found


def test_a_delta_tells_what_was_dropped_and_what_was_made_anew(store, tmp_path):
    fill(store, "gone", 3)
    fill(store, "other", 2)
    store.get_variable("hidden", dim=DIM, checkpoint=False).upsert([1], np.ones((1, DIM), np.float32))
    first = store.checkpoint(tmp_path / "first")
    store.drop_variable("gone")
    store.drop_variable("other")
    store.drop_variable("hidden")
    fill(store, "other", 1, 5.0, dim=2)
    store.variables["other"].clear()
    store.variables["other"].upsert([9], [[5.0, 5.0]])
    second = store.checkpoint(tmp_path / "second")
    fill(store, "gone", 1, 3.0)
    third = store.checkpoint(tmp_path / "third")
    gone, other = ([], [], [0, 1, 2]), ([9], [[5, 5]], [0, 1])
    assert told(second, first) == {"gone": gone, "other": other}
    assert told(second, first, variables=["gone"]) == {"gone": gone}
    assert told(third, first) == {"gone": ([0], [[3] * DIM], [1, 2]), "other": other}
    assert told(third, second) == {"gone": ([0], [[3] * DIM], [])}
    store.drop_variable("gone")
    store.get_variable("gone", "uint64", dim=3).upsert([2**63], [[1.0] * 3])
    fourth = store.checkpoint(tmp_path / "fourth")
    assert told(fourth, first)["gone"] == ([2**63], [[1] * 3], [0, 1, 2])
    with pytest.raises(KeyError, match="no variable 'gone'; it has other"):
        list(second.changes(second, variables=["gone"]))
    for each in (first, second, third, fourth):
        assert kvemb.verify(each, deep=True)


def test_a_replica_drops_what_was_dropped(open_store, store, tmp_path):
    for name in ("gone", "anew", "kept"):
        fill(store, name)
    first = store.checkpoint(tmp_path / "first")
    replica = kvemb.restore(first, tmp_path / "replica", memory_budget=BUDGET)
    part = kvemb.restore(first, tmp_path / "part", memory_budget=BUDGET, variables=["kept"])
    own = fill(part, "gone", 2, 7.0)
    mine = replica.variables["anew"]
    mine.upsert([900], np.ones((1, DIM), np.float32))
    store.drop_variable("gone")
    store.drop_variable("anew")
    fill(store, "anew", 10, 4.0, dim=2)
    fill(store, "kept", 20, 8.0)
    second = store.checkpoint(tmp_path / "second")
    replica.apply_delta(second)
    with pytest.raises(Closed, match="'anew' was dropped"):
        mine.lookup([1])
    assert list(replica.variables) == ["anew", "kept"]
    for name in replica.variables:
        for one, other in zip(replica.variables[name].export(), store.variables[name].export(), strict=True):
            assert one.tolist() == other.tolist()
    part.apply_delta(second)
    assert own.size() == 2, "what this one was restored without is its own"
    assert part.variables["kept"].lookup([3])[0, 0] == 8
    third = replica.checkpoint(tmp_path / "third")
    assert [change.removed.size for change in third.changes(first, variables=["gone"])] == [500]
    for each in (replica, part):
        each.check(deep=True)
        each.close()


def test_a_follower_loses_what_was_dropped(store):
    for name in ("gone", "anew", "kept"):
        fill(store, name)
    store.flush()
    with kvemb.open(store.path, follow=True, memory_budget=BUDGET) as reader:
        tables = {name: reader.variables[name] for name in ("gone", "anew", "kept")}
        store.drop_variable("gone")
        store.drop_variable("anew")
        fill(store, "anew", 10, 4.0, dim=2)
        fill(store, "kept", 500, 8.0)
        store.flush()
        assert (tables["gone"].lookup([1]) == 1).all()
        assert reader.refresh()
        for name in ("gone", "anew"):
            with pytest.raises(Closed, match=f"'{name}' was dropped"):
                tables[name].lookup([1])
        assert list(reader.variables) == ["anew", "kept"]
        assert reader.variables["anew"].lookup([1]).tolist() == [[4, 4]]
        assert (tables["kept"].lookup([1]) == 8).all()


def test_a_follower_loses_what_was_dropped_and_made_anew_alike_each_time(store):
    fill(store, "anew")
    fill(store, "kept")
    first = store.checkpoint(store.path.with_name("first"))
    with kvemb.open(store.path, follow=True, memory_budget=BUDGET) as reader:
        kept = reader.variables["kept"]
        for time_ in range(3):
            old = reader.variables["anew"]
            store.drop_variable("anew")
            fill(store, "anew", 10, 4.0 + time_)
            store.flush()
            assert reader.refresh()
            with pytest.raises(Closed, match="'anew' was dropped"):
                old.lookup([1])
            new = reader.variables["anew"]
            fill(store, "anew", 10, 10.0 + time_)
            store.flush()
            assert reader.refresh()
            assert new.lookup([1])[0, 0] == 10 + time_
            assert kept.lookup([1])[0, 0] == 1
    second = store.checkpoint(store.path.with_name("second"))
    assert second.parent == first.id
    assert told(second, first) == {"anew": (list(range(10)), [[12] * DIM] * 10, list(range(10, 500)))}


@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_ctrl_c_waits_until_it_is_dropped(monkeypatch, open_store, tmp_path, durability):
    store = open_store(tmp_path / "store", durability=durability)
    table = fill(store, "users")
    fill(store, "kept")
    store.checkpoint(tmp_path / "before")
    write = PointWriter.write

    def slowly(writer: PointWriter) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return write(writer)

    with monkeypatch.context() as patch:
        patch.setattr(PointWriter, "write", slowly)
        with pytest.raises(KeyboardInterrupt):
            store.drop_variable("users")
    with pytest.raises(Closed, match="was dropped"):
        table.lookup([1])
    fill(store, "users", 3, 2.0)
    store.checkpoint(tmp_path / "after")
    follower = kvemb.restore(tmp_path / "before", tmp_path / "follower", memory_budget=BUDGET)
    follower.apply_delta(tmp_path / "after")
    assert follower.variables["users"].size() == 3
    follower.close()
    store.close(flush=False)
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as again:
        assert again.variables["users"].size() == 3


def test_where_dropping_fails_before_its_point_a_delta_has_every_row(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "users")
    store.checkpoint(tmp_path / "before")

    with monkeypatch.context() as patch:
        patch.setattr(points.Points, "draft", FULL)
        with pytest.raises(ColdStoreError, match="No space left"):
            store.drop_variable("users")
    fill(store, "users", 3, 2.0)
    store.checkpoint(tmp_path / "after")
    with kvemb.restore(tmp_path / "before", tmp_path / "follower", memory_budget=BUDGET) as follower:
        follower.apply_delta(tmp_path / "after")
        assert follower.variables["users"].size() == 500
