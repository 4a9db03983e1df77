"""What a locator answers, and parts of it."""

from __future__ import annotations

import numpy as np
from blocks import rows_of

from kvemb.tiers.located import Located


def answer() -> Located:
    """Of the keys 5, 6 and 7, 5 is hot in the first table; 6 and 7 are of the second, and 7 has no row."""
    cells, cold = np.array([3, -1, -1]), np.array([1, 2])
    keys, owners, exists = np.array([5, 6, 7]), np.array([0, 1, 1]), np.array([True, False])
    return Located(keys, owners, cells, cold, rows_of([6, 7]), exists, np.ones(2, bool))


def test_what_is_there_is_hot_or_has_a_row():
    at = answer()
    assert (at.present.tolist(), at.hot.tolist(), at.owners_of(at.cold).tolist()) == ([True, True, False], [0], [1, 1])


def test_hot_keys_stay_in_a_part():
    part = answer().with_cold(np.array([True, False]))
    assert (part.keys.tolist(), part.present.tolist()) == ([5, 6, 7], [True, True, False])
    assert (part.cold.tolist(), part.rows.keys.tolist(), part.exists.tolist()) == ([1], [6], [True])
    whole = answer()
    assert whole.with_cold(np.ones(2, bool)) is whole


def test_nothing_but_chosen_cold_keys_is_in_a_cold_part():
    part = answer().cold_alone(np.array([False, True]))
    assert (part.keys.tolist(), part.owners.tolist(), part.cells.tolist()) == ([7], [1], [-1])
    assert (part.cold.tolist(), part.rows.keys.tolist(), part.exists.tolist()) == ([0], [7], [False])
    whole = answer()
    assert whole.cold_alone(np.ones(2, bool)).rows is whole.rows, "it is not copied"
