"""Sightings in bounded memory: never too few are counted, seldom too many, and old ones fade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvemb.operations.admission_counters import AdmissionCounters, Counters
from kvemb.restrict import Admission


def test_with_few_counters_keys_are_admitted_early_but_never_late():
    counting, seen = AdmissionCounters(Admission(4, 1024)), np.zeros(300, np.int64)
    keys, draw = np.arange(300) - 150, np.random.default_rng(1)
    for _ in range(3):
        chosen = np.sort(draw.choice(300, 200, replace=False))
        seen[chosen] += 1
        enough = counting.count(keys[chosen], np.ones(200, np.int64))
        assert enough[seen[chosen] >= 4].all()
    assert counting.nbytes == 1024


def test_old_sightings_fade():
    counting, one = AdmissionCounters(Admission(2, 1024)), np.ones(1, np.int64)
    assert counting.count(one, one).tolist() == [False]
    counting.count(one + 1, one * 2000)  # more than there are counters
    assert counting.count(one, one).tolist() == [False]
    assert counting.count(one, one).tolist() == [True]


def test_counters_do_not_overflow():
    counting, one = AdmissionCounters(Admission(255, 1 << 14)), np.ones(1, np.int64)
    assert counting.count(one, one * 5000).tolist() == [True]
    assert counting.count(one, one).tolist() == [True]


def frozen(counting):
    """The counters that a durable point would write."""
    counting.freeze()
    return counting.frozen()


@pytest.mark.parametrize("before", [True, False])
def test_frozen_counters_are_those_of_their_moment_whoever_copies_them(before):
    counting, keys, one = AdmissionCounters(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    counting.count(keys, one)
    counting.freeze()
    if before:
        counting.count(keys, one)
        counting.count(keys, one)
    kept = counting.frozen()
    counting.count(keys, one)
    assert (kept.values.max(), kept.counted) == (1, 9)
    assert frozen(counting).counted == (36 if before else 18)


def test_counters_that_are_saved_are_not_kept_again_until_they_change():
    counting, keys, one = AdmissionCounters(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    assert frozen(counting) is None
    counting.count(keys, one)
    assert frozen(counting) is not None
    assert frozen(counting) is not None, "the point before may have failed"
    counting.saved()
    assert frozen(counting) is None
    counting.freeze()
    counting.count(keys, one)
    assert counting.frozen() is None
    counting.saved()
    assert frozen(counting).counted == 18


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(-20, 20), min_size=1, max_size=8)), max_size=20))
def test_a_key_that_was_forgotten_is_as_new(calls):
    counting, seen = AdmissionCounters(Admission(3, 1 << 16)), dict.fromkeys(range(-20, 21), 0)
    for forget, batch in calls:
        keys, counts = np.unique(np.array(batch), return_counts=True)
        if forget:
            counting.forget(keys)
            seen |= dict.fromkeys(keys.tolist(), 0)
            continue
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            seen[key] += count
        assert counting.count(keys, counts).tolist() == [seen[key] >= 3 for key in keys.tolist()]


def test_forgetting_costs_other_keys_no_more_than_one_counter():
    counting, keys = AdmissionCounters(Admission(2, 1 << 14)), np.arange(1500)
    counting.count(keys, np.ones(1500, np.int64))
    before = np.count_nonzero(frozen(counting).values)
    counting.forget(keys[:100])
    assert before - np.count_nonzero(frozen(counting).values) <= 100
    assert not counting.count(keys[:100], np.zeros(100, np.int64)).any()
    again = counting.count(keys, np.ones(1500, np.int64))
    assert not again[:100].all(), "these were sighted once"
    assert again[100:].mean() > 0.95


def test_a_durable_point_has_the_counters_before_and_the_next_one_those_after_forgetting():
    counting, keys, one = AdmissionCounters(Admission(3, 4096)), np.arange(9), np.ones(9, np.int64)
    counting.count(keys, one)
    counting.freeze()
    counting.forget(keys)
    assert counting.frozen().values.max() == 1
    counting.saved()
    assert not counting.is_saved
    counting.freeze()
    counting.saved()
    counting.forget(keys + 100)
    assert counting.is_saved, "nothing was counted of these"


def test_counters_that_are_taken_count_on():
    counting, keys = AdmissionCounters(Admission(3, 4096)), np.arange(9)
    counting.count(keys, np.arange(9) % 3)
    stored = frozen(counting)
    other = AdmissionCounters(Admission(2, 4096))
    other.count(keys + 100, np.full(9, 2))
    other.take(stored, saved=True)
    assert frozen(other) is None
    assert other.count(keys, np.ones(9, np.int64)).tolist() == [key % 3 >= 1 for key in range(9)]
    assert not other.count(keys + 100, np.ones(9, np.int64)).any()
    other.take(None)
    assert (frozen(other).values.any(), frozen(other).counted) == (False, 0)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 4)), max_size=200))
def test_joined_counters_have_no_fewer_sightings_of_any_key(sighted):
    """Keys are divided between two, as between shards."""
    parts, seen = [AdmissionCounters(Admission(4, 1024)) for _ in range(2)], dict.fromkeys(range(201), 0)
    for key, count in sighted:
        parts[key % 2].count(np.array([key]), np.array([count]))
        seen[key] += count
    joined = AdmissionCounters(Admission(4, 1024))
    both = [frozen(part) or Counters(np.zeros((4, 256), np.uint8), 0) for part in parts]
    joined.take(both[0].joined(both[1]))
    for key, count in seen.items():
        assert joined.count(np.array([key]), np.array([0])).tolist() == [True] or count < 4
    assert frozen(joined).counted == sum(seen.values())
