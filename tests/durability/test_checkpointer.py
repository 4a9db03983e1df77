"""Writing points one at a time, behind the callers: what they wait for, and whom a failure is told."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout, point_writer
from kvemb.durability.checkpointer import PendingCheckpoint, Writing
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from tests.histories import DIM


def too_full(*args: Any) -> None:
    raise ColdStoreError("too full")


class Made:
    """What stands for a checkpoint."""

    path = "made"


def test_a_writing_that_failed_is_reported_once_it_was_raised():
    future: Future[Any] = Future()
    writing = Writing(future)
    with pytest.raises(TimeoutError):
        writing.wait(0)
    assert not writing.reported, "the caller only waited too short"
    future.set_exception(ColdStoreError("too full"))
    with pytest.raises(ColdStoreError):
        writing.wait()
    assert writing.reported


def test_a_pending_checkpoint_says_how_far_it_is():
    future: Future[Any] = Future()
    pending = PendingCheckpoint(Writing(future))
    assert (pending.done(), repr(pending)) == (False, "<kvemb.PendingCheckpoint being written>")
    future.set_result(Made)
    assert (pending.done(), repr(pending)) == (True, "<kvemb.PendingCheckpoint complete: made>")
    assert pending.result() is Made
    assert not pending.reported
    failed: Future[Any] = Future()
    failed.set_exception(ColdStoreError("too full"))
    pending = PendingCheckpoint(Writing(failed))
    assert (pending.done(), repr(pending)) == (True, "<kvemb.PendingCheckpoint failed: too full>")
    assert not pending.reported, "done() and repr() raise nothing"


@pytest.mark.parametrize("timeout", [-1, "1", float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout):
    with pytest.raises((TypeError, ValueError), match="timeout"):
        PendingCheckpoint(Writing(Future())).result(timeout)


def test_a_target_that_exists_is_refused_before_anything_is_written(store, tmp_path):
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    (tmp_path / "link").symlink_to("nowhere")
    number = inside(store).points.current.point
    for target in (tmp_path / "link", store.path):
        with pytest.raises(FileExistsError, match=f"{target} exists; name a new directory"):
            store.checkpoint(target)
    assert inside(store).points.current.point == number


@pytest.mark.parametrize("stage", ["database", "log"])
def test_a_disk_that_refuses_what_comes_before_the_snapshot_poisons(monkeypatch, open_store, tmp_path, stage):
    store = open_store(tmp_path / "store", durability="write")
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    begun: list[Any] = []
    monkeypatch.setattr(point_writer.PointWriter, "take_snapshots", lambda *args: begun.append(args))
    engine = inside(store)
    owner, name = (engine.database, "flush") if stage == "database" else (engine.log, "prepare")
    monkeypatch.setattr(owner, name, too_full)
    with pytest.raises(Poisoned, match="too full"):
        store.flush()
    assert begun == []


def test_a_checkpoint_behind_returns_before_it_is_written(monkeypatch, store, tmp_path):
    go = threading.Event()
    real = point_writer.PointWriter._write_rows
    monkeypatch.setattr(point_writer.PointWriter, "_write_rows", lambda *args: (go.wait(), real(*args))[1])
    table = store.get_variable("table", dim=DIM)
    table.upsert([1, 2], np.ones((2, DIM), np.float32))
    pending = store.checkpoint(tmp_path / "checkpoint", block=False)
    assert not pending.done()
    assert not (tmp_path / "checkpoint").exists()
    with pytest.raises(TimeoutError):
        pending.result(timeout=0.01)
    table.upsert([2, 3], np.zeros((2, DIM), np.float32))
    go.set()
    assert pending.result().path == tmp_path / "checkpoint"
    assert pending.done()
    with kvemb.open(pending.result(), read_only=True) as read:
        keys, values = read.variables["table"].export()
    assert keys.tolist() == [1, 2]
    assert (values == 1).all()


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
