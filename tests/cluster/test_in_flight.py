"""Steps that shards take after they have answered: later calls of any client see them, and their errors are raised."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from waiting import wait_until

import kvemb
import kvemb.cluster
from kvemb.cluster.ledger import Stamp
from kvemb.cluster.messages import ChangeRequest
from kvemb.cluster.shard import Shard
from kvemb.cluster.transport import ShardFailed
from kvemb.errors import ColdStoreError
from kvemb.handle import inside
from kvemb.timestamp import Timestamp

KEYS, ONES, SGD = np.arange(6), np.ones((6, 2), np.float32), kvemb.optimizers.SGD(1.0)


class Constraint:
    """A function that shards call in a step. It waits for `go`, and raises `error`, if that is set."""

    def __init__(self):
        self.go, self.begun, self.error = threading.Event(), 0, None
        self.go.set()

    def __call__(self, values):
        self.begun += 1
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return values


@pytest.fixture
def constraint():
    made = Constraint()
    yield made
    made.go.set()


@pytest.mark.parametrize("shards", [1, 2])
def test_later_calls_of_any_client_wait_for_a_step_and_a_checkpoint_has_it(
    open_cluster, connect, tmp_path, constraint, shards
):
    cluster = open_cluster(shards, url=tmp_path / "series")
    other = connect()
    table = cluster.get_variable("table", dim=2, optimizer=SGD, constraint=constraint)
    after = cluster.get_variable("after", dim=2, optimizer=SGD)
    theirs, keys, grads = other.variables["table"], KEYS.copy(), ONES.copy()
    constraint.go.clear()
    cluster.apply_gradients({table: (keys, grads), after: (keys, grads)})
    keys[:], grads[:] = 9, 77  # the shards have their own
    wait_until(lambda: constraint.begun)
    found = []
    calls = [
        lambda: found.append(theirs.lookup(KEYS).tolist()),
        lambda: found.append(table.lookup(KEYS, touch=False).tolist()),
        lambda: found.append(theirs.export()[1].tolist()),
        lambda: other.checkpoint(),
    ]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    threads[0].join(0.1)
    assert found == []
    assert all(thread.is_alive() for thread in threads)
    constraint.go.set()
    for thread in threads:
        thread.join()
    assert found == [(-ONES).tolist()] * 3
    assert (after.lookup(KEYS) == -1).all()
    with kvemb.restore(tmp_path / "series", tmp_path / "one", memory_budget="4MiB") as store:
        assert (store.variables["table"].lookup(KEYS) == -1).all()


@pytest.mark.parametrize("call", ["lookup", "apply_gradients", "synchronize", "checkpoint", "close"])
def test_an_error_is_raised_once_by_the_next_call_and_says_which_step_it_was(
    open_cluster, connect, tmp_path, constraint, call
):
    cluster = open_cluster(2, url=tmp_path / "series")
    other = connect()
    table = cluster.get_variable("table", dim=2, optimizer=SGD, constraint=constraint)
    table.apply_gradients(KEYS, ONES)
    cluster.synchronize()
    constraint.error = OverflowError("too large")
    table.apply_gradients(KEYS, ONES)
    assert other.variables["table"].lookup(KEYS).tolist() == (-ONES).tolist()  # it is not theirs
    constraint.error = None
    calls = {"lookup": lambda: table.lookup(KEYS), "apply_gradients": lambda: table.apply_gradients(KEYS, ONES)}
    other.close()
    with pytest.raises(OverflowError, match="too large") as raised:
        calls.get(call, lambda: getattr(cluster, call)())()
    assert raised.value.__notes__ == ["in step 2 of this client, whose call had returned", "variable 'table'"]
    if call != "close":
        cluster.synchronize()
        assert (table.lookup(KEYS) == (-2 if call == "apply_gradients" else -1)).all()
    assert cluster.state.gone == (call == "close")


def test_a_step_that_arrives_again_is_taken_once_and_a_store_that_fails_ends_the_shard(store, monkeypatch):
    def fail(*_):
        raise ColdStoreError("no room")

    shard = Shard(store, lambda: None)
    at, given = Timestamp(1, 1.0), {"dim": 2, "optimizer": SGD}
    shard.call("open_variable", (Stamp("client", 0, 0, 1), "token", "table", given))

    def begin(number):
        step = ChangeRequest("token", "apply_gradients", (KEYS, ONES), at)
        return shard.call("begin_step", (Stamp("client", number, 0, 1), [step]))

    for _ in range(2):
        accepted = begin(1)
        assert accepted.result == ({}, [])
        accepted.rest()
    assert (store.variables["table"].lookup(KEYS) == -1).all()
    last = begin(2)
    monkeypatch.setattr(inside(store.variables["table"]).operations, "apply_gradients", fail)
    last.rest()
    with pytest.raises(ShardFailed, match="its store failed: no room"):
        shard.call("size", ("token",))
