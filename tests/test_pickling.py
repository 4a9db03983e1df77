"""Pickled variables and stores open in other processes as readers of the last durable point."""

from __future__ import annotations

import multiprocessing
import pickle

import pytest
from spawned import looked_up

import kvemb
from kvemb import pickling
from kvemb.errors import Closed


@pytest.fixture(autouse=True)
def arrivals(monkeypatch):
    """Close stores that were unpickled in this process when the test ends."""
    monkeypatch.setattr(pickling, "_arrived", {})
    yield
    for store in pickling._arrived.values():
        store.close()


@pytest.fixture
def users(store):
    table = store.get_variable("users", dim=2)
    table.upsert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    store.get_variable("items", dim=2)
    store.flush()
    return table


@pytest.mark.slow
def test_a_spawned_worker_reads_what_it_is_given(users):
    spawning = multiprocessing.get_context("spawn")
    answers = spawning.Queue()
    worker = spawning.Process(target=looked_up, args=(users, [2, 3], answers))
    worker.start()
    assert answers.get(timeout=120) == [[2, 2], [0, 0]]
    worker.join()
    assert worker.exitcode == 0


def test_variables_of_a_store_arrive_in_one_and_follow_it(store, users):
    first, second, whole = pickle.loads(pickle.dumps((users, store.variables["items"], store)))
    assert first.resource_handle == (whole, "users")
    assert second.resource_handle == (whole, "items")
    assert (whole.follows, whole.path) == (True, store.path)
    users.upsert([1], [[5.0, 5.0]])
    assert first.lookup([1]).tolist() == [[1, 1]]
    store.flush()
    whole.refresh()
    assert pickle.loads(pickle.dumps(first)) is first, "a reader's own, too"
    assert first.lookup([1]).tolist() == [[5, 5]]
    store.get_variable("late", dim=3)
    store.flush()
    assert pickle.loads(pickle.dumps(store.variables["late"])).dim == 3


def test_one_of_a_checkpoint_arrives_as_it_is_there(store, users, tmp_path):
    with kvemb.open(store.checkpoint(tmp_path / "checkpoint"), read_only=True, memory_budget="4MiB") as checkpoint:
        arrived = pickle.loads(pickle.dumps(checkpoint.variables["users"]))
        assert arrived.lookup([2]).tolist() == [[2, 2]]


def test_what_no_other_process_could_read_is_refused(open_store, tmp_path):
    store = open_store(tmp_path / "other")
    new = store.get_variable("new", dim=2)
    with pytest.raises(ValueError, match=r"'new' cannot be pickled before .* is flushed; call store\.flush"):
        pickle.dumps(new)
    scratch = store.get_variable("scratch", dim=2, kv_creator=kvemb.MemoryCreator())
    with pytest.raises(
        TypeError, match="'scratch' cannot be pickled: its rows are only in this process's memory; use RocksDBCreator"
    ):
        pickle.dumps(scratch)
    store.flush()
    assert pickle.dumps(new)
    store.drop_variable("new")
    with pytest.raises(Closed, match="dropped"):
        pickle.dumps(new)
    store.close()
    for each in (store, scratch):
        with pytest.raises(Closed):
            pickle.dumps(each)
