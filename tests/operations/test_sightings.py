"""Sightings in bounded memory: never too few are counted, seldom too many, and old ones fade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvemb.operations.sightings import Counters, Sightings
from kvemb.restrict import Admission


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


def frozen(sightings):
    """The counters that a durable point would write."""
    sightings.freeze()
    return sightings.frozen()


@pytest.mark.parametrize("before", [True, False])
def test_frozen_counters_are_those_of_their_moment_whoever_copies_them(before):
    sightings, keys, one = Sightings(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    sightings.sight(keys, one)
    sightings.freeze()
    if before:
        sightings.sight(keys, one)
        sightings.sight(keys, one)
    kept = sightings.frozen()
    sightings.sight(keys, one)
    assert (kept.values.max(), kept.counted) == (1, 9)
    assert frozen(sightings).counted == (36 if before else 18)


def test_counters_that_are_saved_are_not_kept_again_until_they_change():
    sightings, keys, one = Sightings(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    assert frozen(sightings) is None
    sightings.sight(keys, one)
    assert frozen(sightings) is not None
    assert frozen(sightings) is not None, "the point before may have failed"
    sightings.saved()
    assert frozen(sightings) is None
    sightings.freeze()
    sightings.sight(keys, one)
    assert sightings.frozen() is None
    sightings.saved()
    assert frozen(sightings).counted == 18


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(-20, 20), min_size=1, max_size=8)), max_size=20))
def test_a_key_that_was_forgotten_is_as_new(calls):
    sightings, seen = Sightings(Admission(3, 1 << 16)), dict.fromkeys(range(-20, 21), 0)
    for forget, batch in calls:
        keys, counts = np.unique(np.array(batch), return_counts=True)
        if forget:
            sightings.forget(keys)
            seen |= dict.fromkeys(keys.tolist(), 0)
            continue
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            seen[key] += count
        assert sightings.sight(keys, counts).tolist() == [seen[key] >= 3 for key in keys.tolist()]


def test_forgetting_costs_other_keys_no_more_than_one_counter():
    sightings, keys = Sightings(Admission(2, 1 << 14)), np.arange(1500)
    sightings.sight(keys, np.ones(1500, np.int64))
    before = np.count_nonzero(frozen(sightings).values)
    sightings.forget(keys[:100])
    assert before - np.count_nonzero(frozen(sightings).values) <= 100
    assert not sightings.sight(keys[:100], np.zeros(100, np.int64)).any()
    again = sightings.sight(keys, np.ones(1500, np.int64))
    assert not again[:100].all(), "these were sighted once"
    assert again[100:].mean() > 0.95


def test_a_durable_point_has_the_counters_before_and_the_next_one_those_after_forgetting():
    sightings, keys, one = Sightings(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    sightings.sight(keys, one)
    sightings.freeze()
    sightings.forget(keys)
    assert sightings.frozen().values.max() == 1
    sightings.saved()
    assert not sightings.is_saved
    sightings.freeze()
    sightings.saved()
    sightings.forget(keys + 100)
    assert sightings.is_saved, "nothing was counted of these"


def test_counters_that_are_taken_count_on():
    sightings, keys = Sightings(Admission(3, 4096)), np.arange(9)
    sightings.sight(keys, np.arange(9) % 3)
    stored = frozen(sightings)
    other = Sightings(Admission(2, 4096))
    other.sight(keys + 100, np.full(9, 2))
    other.take(stored, saved=True)
    assert frozen(other) is None
    assert other.sight(keys, np.ones(9, np.int64)).tolist() == [key % 3 >= 1 for key in range(9)]
    assert not other.sight(keys + 100, np.ones(9, np.int64)).any()
    other.take(None)
    assert (frozen(other).values.any(), frozen(other).counted) == (False, 0)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4)), max_size=200))
def test_joined_counters_have_no_fewer_sightings_of_any_key(sighted):
    """Keys are divided between two, as between shards."""
    parts, seen = [Sightings(Admission(4, 1024)) for _ in range(2)], dict.fromkeys(range(201), 0)
    for key, count in sighted:
        parts[key % 2].sight(np.array([key]), np.array([count]))
        seen[key] += count
    joined = Sightings(Admission(4, 1024))
    both = [frozen(part) or Counters(np.zeros((4, 256), np.uint8), 0) for part in parts]
    joined.take(both[0].joined(both[1]))
    for key, count in seen.items():
        assert joined.sight(np.array([key]), np.array([0])).tolist() == [True] or count < 4
    assert frozen(joined).counted == sum(seen.values())
