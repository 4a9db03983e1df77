"""A client's calls are refused where they would deadlock."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
import kvemb.cluster

SGD = kvemb.optimizers.SGD(0.5)
ONES = np.ones((1, 2), np.float32)


def test_a_function_that_a_shard_calls_cannot_call_its_cluster(open_cluster, tmp_path):
    cluster, other = open_cluster(2, url=tmp_path / "series"), open_cluster(1)
    items, elsewhere = cluster.get_variable("items", dim=2), other.get_variable("items", dim=2)
    calls = [
        lambda: items.lookup([1]),
        lambda: cluster.lookup({"items": [1]}),
        lambda: items.upsert([1], ONES),
        lambda: items.lookup_async([1]),
        lambda: cluster.get_variable("items"),
        lambda: cluster.variables["items"],
        lambda: cluster.drop_variable("items"),
        lambda: next(items.export_batches(1)),
        lambda: cluster.checkpoint(),
        lambda: cluster.recover(),
        lambda: cluster.close(),
    ]
    refused = []

    def constraint(values):
        for call in calls:
            with pytest.raises(RuntimeError, match=r"such as a constraint or a policy, called the cluster .*series"):
                call()
            refused.append(call)
        return values * elsewhere.lookup([1])  # another cluster may be called

    elsewhere.upsert([1], 3 * ONES)
    users = cluster.get_variable("users", dim=2, optimizer=SGD, constraint=constraint)
    users.apply_gradients([1], ONES)
    cluster.synchronize()
    assert refused == calls
    assert cluster.checkpoint().number == 1
    assert users.lookup([1]).tolist() == [[-1.5, -1.5]]
    assert items.size() == 0


def test_what_such_a_call_raises_is_the_error_of_the_step_and_no_row_changes(open_cluster, tmp_path, connect):
    cluster = open_cluster(2, url=tmp_path / "series")
    client = connect()

    def constraint(values):
        return values + client.variables["users"].lookup([2])

    users = cluster.get_variable("users", dim=2, optimizer=SGD, constraint=constraint)
    users.upsert([1, 2], np.ones((2, 2), np.float32))
    users.apply_gradients([1], ONES)
    with pytest.raises(RuntimeError, match="called the cluster"):
        users.lookup([1])
    assert users.lookup([1, 2]).tolist() == [[1, 1], [1, 1]]
