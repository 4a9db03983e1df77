"""Flushes every few seconds, by a clock that the test controls."""

from __future__ import annotations

import gc
import queue
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout, point_writer
from kvemb.engine.periodic_flush import run_flushes
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside


class Clock:
    """A clock whose time passes only with tick(), and which ends with end()."""

    def __init__(self):
        self.asked = []
        self._turns, self._waiting = queue.Queue(), queue.Queue()

    def wait(self, seconds):
        self.asked.append(seconds)
        self._waiting.put(None)
        return self._turns.get()

    def tick(self):
        """Let the time pass, and return when the thread waits again."""
        self._turns.put(False)
        self._waiting.get()

    def run(self, store):
        thread = run_flushes(inside(store), 30.0, self.wait)
        self._waiting.get()
        return thread

    def end(self, thread):
        self._turns.put(True)
        thread.join()


@pytest.fixture
def clock(store):
    clock = Clock()
    thread = clock.run(store)
    yield clock
    clock.end(thread)


def written(store):
    """Wait for the point being written, and return the last one's number."""
    with inside(store).lock:
        inside(store).checkpointer.wait()
    return store.point


def durable(store):
    """The keys of the last durable point, to which the store would recover."""
    written(store)
    with kvemb.open(store.path, follow=True, memory_budget="4MiB") as reader:
        return reader.variables["users"].export()[0].tolist() if "users" in reader.variables else None


def ones(count):
    return np.ones((count, 2), np.float32)


def test_what_was_trained_before_a_tick_is_durable_after_it(store, clock):
    users = store.get_variable("users", dim=2)
    users.upsert([1, 2], ones(2))
    assert durable(store) is None
    clock.tick()
    assert durable(store) == [1, 2]
    users.upsert([3], ones(1))
    assert durable(store) == [1, 2]
    clock.tick()
    assert durable(store) == [1, 2, 3]
    assert set(clock.asked) == {30.0}


def test_a_point_that_is_being_written_is_not_waited_for(store, clock, monkeypatch):
    go = threading.Event()
    real = point_writer.PointWriter._write_rows
    monkeypatch.setattr(point_writer.PointWriter, "_write_rows", lambda *args: (go.wait(), real(*args))[1])
    users, before = store.get_variable("users", dim=2), written(store)
    for turn in range(3):
        users.upsert([turn], ones(1))
        clock.tick()
    go.set()
    assert written(store) == before + 1


def test_a_flush_that_fails_is_told_by_the_next_write_and_by_close(open_store, tmp_path, monkeypatch):
    store, clock = open_store(tmp_path / "store"), Clock()
    thread = clock.run(store)
    users = store.get_variable("users", dim=2)
    users.upsert([1], ones(1))

    with monkeypatch.context() as patch:
        patch.setattr(layout, "set_current", Mock(side_effect=OSError(28, "No space left on device")))
        clock.tick()
        while inside(store).state.cause is None:
            time.sleep(0.001)
    with pytest.raises(Poisoned, match="No space left"):
        users.upsert([2], ones(1))
    assert users.lookup([1]).tolist() == [[1, 1]]
    clock.tick()
    with pytest.raises(Poisoned, match="No space left"):
        store.close()
    assert store.state.closed
    clock._turns.put(False)
    thread.join()  # it has nothing left to do


def test_a_store_that_has_recovered_is_flushed_again(store, clock, monkeypatch):
    users = store.get_variable("users", dim=2)
    users.upsert([1], ones(1))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "set_current", Mock(side_effect=OSError(28, "No space left on device")))
        clock.tick()
        while inside(store).state.cause is None:
            time.sleep(0.001)
    clock.tick()
    store.recover()
    assert durable(store) == [1]
    users.upsert([2], ones(1))
    clock.tick()
    assert durable(store) == [1, 2]


def test_the_failure_of_a_users_checkpoint_is_still_told_to_the_user(store, clock, monkeypatch, tmp_path):
    users = store.get_variable("users", dim=2)
    users.upsert([1], ones(1))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "unpack", Mock(side_effect=ColdStoreError("too full")))
        pending = store.checkpoint(tmp_path / "first", block=False)
        while not pending.done():
            time.sleep(0.001)
    users.upsert([2], ones(1))
    before = store.point
    clock.tick()
    while store.point == before:
        time.sleep(0.001)
    with pytest.raises(ColdStoreError, match="too full"):
        store.flush()
    store.flush()
    assert durable(store) == [1, 2]


def test_where_nothing_changed_no_point_is_written(store, clock):
    store.get_variable("users", dim=2).upsert([1], ones(1))
    clock.tick()
    before = written(store)
    clock.tick()
    assert written(store) == before


def test_an_error_before_anything_is_written_is_logged_and_tried_again(store, clock, monkeypatch, caplog):
    store.get_variable("users", dim=2).upsert([1], ones(1))
    with monkeypatch.context() as patch:
        patch.setattr(point_writer.PointWriter, "take_snapshots", lambda *args: 1 / 0)
        clock.tick()
    assert caplog.messages == [
        f"the background flush of {store.path} failed, and will be tried again: ZeroDivisionError('division by zero')"
    ]
    clock.tick()
    assert durable(store) == [1]


def test_opening_with_flush_every_flushes_until_the_store_is_closed(open_store, tmp_path):
    store = open_store(tmp_path / "store", flush_every=0.01, durability="write")
    users, first = store.get_variable("users", dim=2), store.point
    while store.point < first + 2:
        users.upsert([1], ones(1))
        time.sleep(0.001)
    store.close()
    while any(thread.name == "kvemb-flush" for thread in threading.enumerate()):
        time.sleep(0.001)
    with kvemb.CheckpointManager(tmp_path / "series") as series, open_store(tmp_path / "store") as store:
        series.save(store)
    restored = kvemb.restore(tmp_path / "series", tmp_path / "other", memory_budget="4MiB", flush_every=0.01)
    with restored:
        first = restored.point
        restored.variables["users"].upsert([2], ones(1))
        while restored.point == first:
            time.sleep(0.001)


@pytest.mark.filterwarnings("ignore:unclosed file.*LOCK:ResourceWarning")
def test_a_store_that_nothing_refers_to_is_still_told_as_not_closed(tmp_path, caplog):
    store, clock = kvemb.open(tmp_path / "store", memory_budget="4MiB"), Clock()
    thread = clock.run(store)
    del store
    gc.collect()
    assert [message for message in caplog.messages if "was not closed" in message] != []
    clock._turns.put(False)
    thread.join()


def test_it_has_no_effect_with_resume_and_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"flush_every has no effect with resume, .* call save_if_due"):
        kvemb.CheckpointManager(tmp_path / "series").resume(tmp_path / "new", flush_every=30)
    assert list(tmp_path.iterdir()) == []
