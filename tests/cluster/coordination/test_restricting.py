"""A restriction over shards keeps exactly the rows that one store would."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb


@pytest.mark.parametrize("keep", [0, 1, 57, 119, 120, 500])
def test_as_many_rows_stay_as_are_asked_for_those_with_the_highest_scores(open_cluster, keep):
    cluster = open_cluster(3)
    table = cluster.get_variable("table", dim=1, restrict_policy=kvemb.FrequencyRestrictPolicy())
    keys = np.arange(120)
    table.upsert(keys, np.ones((120, 1), np.float32))
    table.lookup(np.repeat(keys, keys % 5))  # many ties, which go to the larger key
    assert table.restrict(keep, trigger=1000) == 0
    assert table.restrict(keep) == 120 - min(keep, 120)
    best = sorted(keys, key=lambda key: (key % 5, key))[len(keys) - min(keep, 120) :]
    assert table.export()[0].tolist() == sorted(best)


def test_as_many_as_are_alive_stay_if_more_are_asked_for(open_cluster):
    table = open_cluster(2).get_variable(
        "table", dim=1, restrict_policy=kvemb.TimeToLiveRestrictPolicy(1, clock="steps")
    )
    table.upsert(np.arange(80), np.ones((80, 1), np.float32))
    for _ in range(4):
        table.lookup(np.arange(50, 80))
    assert table.restrict(70) == 50
    assert table.export()[0].tolist() == list(range(50, 80))
