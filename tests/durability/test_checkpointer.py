"""Writing points one at a time, in the background: what callers wait for, and who gets the error of a failure."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from quick import quick

import kvemb
from kvemb.durability import layout, point_writer, points
from kvemb.durability.checkpointer import PendingCheckpoint
from kvemb.errors import CheckpointNotFound, ColdStoreError, Poisoned
from kvemb.handle import inside
from tests.histories import DIM

too_full = Mock(side_effect=ColdStoreError("too full"))


class Made:
    """What stands for a checkpoint."""

    path = "made"


def test_a_pending_checkpoint_says_how_far_it_is():
    future: Future[Any] = Future()
    pending = PendingCheckpoint(future)
    assert (pending.done(), repr(pending)) == (False, "<kvemb.PendingCheckpoint being written>")
    with pytest.raises(TimeoutError):
        pending.result(0)
    for timeout in (-1, "1", float("nan")):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            pending.result(timeout)
    assert not pending.reported, "the caller only waited too short"
    future.set_result(Made)
    assert (pending.done(), repr(pending)) == (True, f"<kvemb.PendingCheckpoint complete: {Made!r}>")
    assert pending.result() is Made
    assert not pending.reported


def test_a_writing_that_failed_is_reported_once_it_was_raised():
    failed: Future[Any] = Future()
    failed.set_exception(ColdStoreError("too full"))
    pending = PendingCheckpoint(failed)
    assert (pending.done(), repr(pending)) == (True, "<kvemb.PendingCheckpoint failed: too full>")
    assert not pending.reported, "done() and repr() raise nothing"
    with pytest.raises(ColdStoreError):
        pending.result()
    assert pending.reported


def test_a_target_that_exists_is_refused_before_anything_is_written(store, tmp_path):
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    (tmp_path / "link").symlink_to("nowhere")
    number = inside(store).points.current.point
    for target in (tmp_path / "link", store.path):
        with pytest.raises(FileExistsError, match=f"{target} exists; name a new directory"):
            store.checkpoint(target)
    assert inside(store).points.current.point == number


def test_a_disk_that_refuses_what_comes_before_the_snapshot_poisons(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store", durability="write")
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    begun: list[Any] = []
    monkeypatch.setattr(point_writer.PointWriter, "take_snapshots", lambda *args: begun.append(args))
    monkeypatch.setattr(inside(store).log, "prepare", too_full)
    with pytest.raises(Poisoned, match="too full"):
        store.flush()
    assert begun == []


ADAM = kvemb.optimizers.Adam(0.5, bias_correction="global")
CHANGES = {
    "a row is new": lambda store, table: table.upsert([9], np.ones((1, DIM), np.float32)),
    "a row is written again": lambda store, table: table.upsert([1], np.ones((1, DIM), np.float32)),
    "a gradient": lambda store, table: table.apply_gradients([1], np.ones((1, DIM), np.float32)),
    "a use": lambda store, table: table.lookup([1]),
    "a use of a cold row": lambda store, table: table.lookup(np.arange(400)),
    "a row is removed": lambda store, table: table.remove([1]),
    "all rows are removed": lambda store, table: table.clear(),
    "the lowest rows are removed": lambda store, table: table.restrict(100),
    "an optimizer's parameter": lambda store, table: setattr(table, "optimizer", ADAM),
    "a new variable": lambda store, table: store.get_variable("other", dim=DIM),
    "a variable is dropped": lambda store, table: store.drop_variable("side"),
    "its files are merged": lambda store, table: kvemb.bulk.compact(store),
    "rows changed and all were written": lambda store, table: change_all_and_write(table),
}


def change_all_and_write(table):
    table.upsert(np.arange(400), np.ones((400, DIM), np.float32))
    with inside(table).storage.bypassing():
        assert True
    assert inside(table).storage.is_clean()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("durability", quick(["checkpoint", "write"]))
def test_a_flush_makes_a_point_only_if_something_changed(open_store, tmp_path, change, durability):
    store = open_store(tmp_path / "store", memory_budget="4MiB", durability=durability)
    optimizer, policy = kvemb.optimizers.Adam(0.1, bias_correction="global"), kvemb.FrequencyRestrictPolicy()
    table = store.get_variable("table", dim=DIM, hot_rows=160, optimizer=optimizer, restrict_policy=policy)
    store.get_variable("side", dim=DIM, checkpoint=False)
    table.upsert(np.arange(400), np.ones((400, DIM), np.float32))
    store.checkpoint(tmp_path / "checkpoint", extra={"step": 7})
    made = store.point
    for _ in range(2):
        store.flush()
        assert store.point == made
        assert inside(store).points.current.extra == {"step": 7}
    CHANGES[change](store, table)
    store.flush()
    after = store.point
    assert after > made
    store.flush()
    assert (store.point, inside(store).points.current.extra) == (after, {})


def test_a_store_that_was_opened_again_has_its_point(open_store, tmp_path):
    for _ in range(2):
        store = open_store(tmp_path / "store", durability="write")
        store.get_variable("table", dim=DIM, initializer=kvemb.initializers.RandomNormal(0.0, 0.1))
        first = store.point
        store.flush()
        made = store.point
        store.flush()
        assert store.point == made
        store.variables["table"].upsert([made], np.ones((1, DIM), np.float32))
        store.close(flush=False)
    assert made == first


@pytest.mark.limits(change_buffer_keys=400)
def test_a_flush_after_opening_has_rows_that_were_all_written_before(open_store, tmp_path):
    """The keys that changed fill their buffer, so all of them are in files, and no row is dirty."""
    keys = np.arange(400)
    with open_store(tmp_path / "store") as store:
        store.get_variable("table", dim=DIM).upsert(keys, np.zeros((400, DIM), np.float32))
    store = open_store(tmp_path / "store")
    first = store.point
    store.variables["table"].upsert(keys, np.ones((400, DIM), np.float32))
    store.variables["table"].export()
    assert inside(store).changes.buffered_keys == 0
    store.flush()
    assert store.point > first
    with kvemb.open(tmp_path / "store", read_only=True) as reader:
        assert (reader.variables["table"].lookup(keys, touch=False) == 1).all()


def test_what_a_failed_checkpoint_wrote_is_in_the_next_flush(monkeypatch, store, tmp_path):
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "unpack", too_full)
        with pytest.raises(ColdStoreError, match="too full"):
            store.checkpoint(tmp_path / "checkpoint")
    store.flush()
    with kvemb.open(tmp_path / "store", follow=True) as reader:
        assert reader.variables["table"].lookup([1]).tolist() == [[1] * DIM]


@pytest.fixture
def waiting(open_store, tmp_path):
    """A store, and a table of 400 rows, of which some wait to be spilled."""
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    table = store.get_variable("table", dim=DIM, hot_rows=160)
    for ids in np.split(np.arange(400), 40):
        table.upsert(ids, np.ones((len(ids), DIM), np.float32))
    assert table.stats.rows_waiting > 0
    return store, table


@pytest.mark.limits(memtable_rows=32, min_own_copies=16, max_own_copies=16, copied_rows=16)
def test_a_checkpoint_behind_does_not_wait_for_rows_that_wait_to_be_spilled(monkeypatch, waiting, tmp_path):
    store, table = waiting
    go, cold = threading.Event(), inside(table).storage.cold
    real = cold.write
    monkeypatch.setattr(cold, "write", lambda rows: (go.wait(), real(rows))[1])
    pending = store.checkpoint(tmp_path / "checkpoint", block=False)
    hot = np.sort(inside(table).hot_tables.keys())
    for ids in np.split(hot, range(10, len(hot), 10)):  # more than may be copied before they are written
        table.upsert(ids, np.zeros((len(ids), DIM), np.float32))
    assert not pending.done()
    assert not (tmp_path / "checkpoint").exists()
    go.set()
    with kvemb.open(pending.result(), read_only=True) as then:
        assert (then.variables["table"].lookup(np.arange(400)) == 1).all()
    assert (table.lookup(np.arange(400)) == np.isin(np.arange(400), hot, invert=True)[:, None]).all()


def test_there_is_no_checkpoint_without_rows_that_could_not_be_spilled(monkeypatch, waiting, tmp_path):
    store, table = waiting
    begun, cold = threading.Event(), inside(table).storage.cold

    def write(rows: Any) -> None:
        begun.wait()
        raise ColdStoreError("too full")

    monkeypatch.setattr(cold, "write", write)
    pending = store.checkpoint(tmp_path / "checkpoint", block=False)
    begun.set()
    with pytest.raises(Poisoned, match="too full"):
        pending.result()
    assert not (tmp_path / "checkpoint").exists()
    assert (table.lookup(np.arange(400)) == 1).all(), "they are in memory"
    store.close(flush=False)
    with kvemb.open(tmp_path / "store") as again:
        assert again.variables == {}


@pytest.mark.parametrize("call", ["flush", "checkpoint", "close"])
def test_what_a_checkpoint_behind_failed_with_is_raised_by_the_next_call(monkeypatch, open_store, tmp_path, call):
    store = open_store(tmp_path / "store")
    table = store.get_variable("table", dim=DIM)
    table.upsert([1], np.ones((1, DIM), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "unpack", too_full)
        pending = store.checkpoint(tmp_path / "first", block=False)
        while not pending.done():
            time.sleep(0.001)
    with pytest.raises(ColdStoreError, match="too full"):
        {"flush": store.flush, "close": store.close, "checkpoint": lambda: store.checkpoint(tmp_path / "x")}[call]()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    if call == "close":
        store = open_store(tmp_path / "store")
        table = store.variables["table"]
    assert store.state.cause is None, "the store itself is sound"
    store.checkpoint(tmp_path / "second")
    assert table.size() == 1


def test_an_error_that_result_told_is_not_told_again(monkeypatch, store, tmp_path):
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "unpack", too_full)
        pending = store.checkpoint(tmp_path / "first", block=False)
        with pytest.raises(ColdStoreError, match="too full"):
            pending.result()
    store.flush()
    store.checkpoint(tmp_path / "first")


def test_a_checkpoint_that_is_taken_away_at_once_leaves_the_store_sound(monkeypatch, open_store, tmp_path):
    store, target, real = open_store(tmp_path / "store"), tmp_path / "checkpoint", points.Points.drop_others
    table = store.get_variable("table", dim=DIM)
    table.upsert([1], np.ones((1, DIM), np.float32))

    def drop_others(*args: Any) -> None:
        if target.exists():
            target.rename(tmp_path / "taken")
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(points.Points, "drop_others", drop_others)
        with pytest.raises(CheckpointNotFound, match="does not exist"):
            store.checkpoint(target)
    table.upsert([2], np.ones((1, DIM), np.float32))
    taken = kvemb.Checkpoint(tmp_path / "taken")
    assert [change.keys.tolist() for change in store.checkpoint(target).changes(taken)] == [[2]]
