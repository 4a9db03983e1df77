"""A shard alone: the errors of its calls once it is closed. Other tests use shards through clusters."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import kvemb
from kvemb.cluster.ledger import Stamp
from kvemb.cluster.messages import ChangeRequest, ReadRequests
from kvemb.cluster.shard import Shard
from kvemb.cluster.transport import ShardFailed
from kvemb.timestamp import Timestamp

KEYS, AT = np.arange(3), Timestamp(1, 1.0)


def stamp(number):
    return Stamp("client", number, 0, 1)


def test_calls_that_its_end_overtakes_say_that_it_is_lost(store):
    """A client that goes back ends shards that are well, while other clients call them."""
    released = []
    shard = Shard(store, lambda: released.append(1))
    given = {"dim": 2, "optimizer": kvemb.optimizers.SGD(1.0)}
    shard.call("open_variable", (stamp(0), "token", "table", given))

    def change(number):
        given = KEYS, np.ones((3, 2), np.float32)
        return shard.call("change", (stamp(number), [ChangeRequest("token", "apply_gradients", given, AT)]))

    assert change(1) == [None]
    shard.close()
    for call in (
        lambda: change(2),
        lambda: shard.call("lookup", (stamp(3), ReadRequests(["token"], [3], KEYS, None, [tuple(AT)]), False, True)),
        lambda: shard.call("scores", ("token", KEYS)),
        lambda: shard.call("begin_scan", ("scan", "token", 10, 0, 9)),
        lambda: shard.call("check", (False,)),
    ):
        with pytest.raises(ShardFailed, match="it was closed: a client took the cluster back"):
            call()
    assert released


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file.*LOCK:ResourceWarning")
def test_the_end_of_a_program_warns_of_a_cluster_not_of_its_shards(tmp_path, caplog):
    """A shard's store is scratch: its path says nothing to anyone, and the cluster's checkpoints have the rows."""
    gc.collect()  # what earlier tests left is told now
    caplog.clear()
    left = Shard(kvemb.open(tmp_path / "store", memory_budget="4MiB"), lambda: None)
    alive = weakref.ref(left)
    del left
    gc.collect()
    assert alive() is None
    assert caplog.messages == []
