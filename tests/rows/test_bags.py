"""Bags: which keys they hold, and some of them alone."""

from __future__ import annotations

import numpy as np

from kvemb.rows.bags import Bags

BAGS = Bags(np.array([0, 2, 2, 5, 6]), np.arange(6.0), np.array([2.0, 0, 3, 1]), np.inf)


def test_each_key_is_in_a_bag():
    assert BAGS.bag_count == 4
    assert BAGS.of_keys().tolist() == [0, 0, 2, 2, 2, 3]
    assert BAGS.holding(np.array([0, 3, 4])).tolist() == [0, 2]
    assert BAGS.holding(np.array([], np.int64)).tolist() == []


def test_chosen_bags_keep_their_keys_weights_and_divisors():
    positions, left = BAGS.only(np.array([0, 1, 3]))
    assert positions.tolist() == [0, 1, 5]
    assert left.offsets.tolist() == [0, 2, 2, 3]
    assert left.weights.tolist() == [0, 1, 5]
    assert left.divisors.tolist() == [2, 0, 1]
    positions, left = BAGS._replace(weights=BAGS.weights[:0], divisors=BAGS.divisors[:0]).only(np.array([2]))
    assert (positions.tolist(), left.offsets.tolist()) == ([2, 3, 4], [0, 3])
    assert len(left.weights) == len(left.divisors) == 0
