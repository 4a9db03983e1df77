"""A shard by itself: what its calls raise once it is closed. Others see shards through clusters."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb.cluster.ledger import Stamp
from kvemb.cluster.messages import Change, Read
from kvemb.cluster.shard import Shard
from kvemb.cluster.transport import Failed
from kvemb.moment import Moment

KEYS, AT = np.arange(3), Moment(1, 1.0)


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
        return shard.call("change", (stamp(number), [Change("token", "apply_gradients", given, AT)]))

    assert change(1) == [None]
    shard.close()
    for call in (
        lambda: change(2),
        lambda: shard.call("lookup", (stamp(3), [Read("token", KEYS, None, AT, 24)], False)),
        lambda: shard.call("scores", ("token", KEYS)),
        lambda: shard.call("begin_scan", ("scan", "token", 10, 0, 9)),
        lambda: shard.call("check", (False,)),
    ):
        with pytest.raises(Failed, match="it was closed: a client took the cluster back"):
            call()
    assert released
