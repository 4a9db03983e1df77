"""Sightings in bounded memory: never too few are counted, seldom too many, and old ones fade."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvemb.restrict import Admission
from kvemb.tiers.sightings import Sightings


@given(st.lists(st.lists(st.integers(-20, 20), min_size=1, max_size=8), max_size=20))
def test_a_key_is_admitted_at_its_nth_sighting(batches):
    sightings, seen = Sightings(Admission(3, 1 << 16)), dict.fromkeys(range(-20, 21), 0)
    for batch in batches:
        keys, counts = np.unique(np.array(batch), return_counts=True)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            seen[key] += count
        assert sightings.sight(keys, counts).tolist() == [seen[key] >= 3 for key in keys.tolist()]


def test_with_few_counters_keys_are_admitted_early_but_never_late():
    sightings, seen = Sightings(Admission(4, 1024)), np.zeros(300, np.int64)
    keys, draw = np.arange(300) - 150, np.random.default_rng(1)
    for _ in range(3):
        chosen = np.sort(draw.choice(300, 200, replace=False))
        seen[chosen] += 1
        enough = sightings.sight(keys[chosen], np.ones(200, np.int64))
        assert enough[seen[chosen] >= 4].all()
    assert sightings.nbytes == 1024


def test_old_sightings_fade():
    sightings, one = Sightings(Admission(2, 1024)), np.ones(1, np.int64)
    assert sightings.sight(one, one).tolist() == [False]
    sightings.sight(one + 1, one * 2000)  # more than there are counters
    assert sightings.sight(one, one).tolist() == [False]
    assert sightings.sight(one, one).tolist() == [True]


def test_counters_do_not_overflow():
    sightings, one = Sightings(Admission(255, 1 << 14)), np.ones(1, np.int64)
    assert sightings.sight(one, one * 5000).tolist() == [True]
    assert sightings.sight(one, one).tolist() == [True]
