"""Policies over a variable in both tiers: epochs, time to live, norms, and admission of keys."""

from __future__ import annotations

import time

import numpy as np
import pytest

import kvemb
from kvemb import bulk
from kvemb.errors import SchemaMismatch
from kvemb.optimizers import SGD
from kvemb.restrict import policy_from_json
from kvemb.restrict.policy import checked_score


@pytest.fixture
def make(store):
    """A function that makes a variable of rows 0 to 99, 16 of them hot."""

    def made(policy, name="v", **arguments):
        table = store.get_variable(name, dim=2, restrict_policy=policy, hot_rows=16, optimizer=SGD(1.0), **arguments)
        table.upsert(np.arange(100), np.arange(200, dtype=np.float32).reshape(100, 2) / 100)
        return table

    return made


def kept(table):
    return table.export()[0].tolist()


POLICIES = [
    kvemb.EpochTimestampRestrictPolicy(),
    kvemb.EpochFrequencyRestrictPolicy(),
    kvemb.TimeToLiveRestrictPolicy(5, clock="steps"),
    kvemb.NormRestrictPolicy(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_a_policy_is_stored_and_opened_again(open_store, tmp_path, policy):
    with open_store(tmp_path / "again") as store:
        store.get_variable("v", dim=2, restrict_policy=policy).upsert([1], [[1.0, 2]])
    with open_store(tmp_path / "again") as store:
        assert store.variables["v"].restrict_policy == policy
        assert store.get_variable("v", restrict_policy=policy).restrict_policy == policy
        with pytest.raises(SchemaMismatch, match="restrict_policy"):
            store.get_variable("v", restrict_policy=kvemb.FrequencyRestrictPolicy)
    assert policy_from_json(policy.to_json()) == policy


def test_later_epochs_outlive_frequent_rows_of_earlier_ones(make):
    table = make(kvemb.EpochFrequencyRestrictPolicy)
    for _ in range(5):
        table.lookup(np.arange(50, 100))
    table.restrict_policy.set_epoch(1)
    assert table.restrict_policy.epoch == 1
    table.lookup([3, 4, 99])
    table.lookup([4])
    assert table.restrict_policy.status([3, 4, 99, 98, 0]).tolist() == [2**32 + 2, 2**32 + 3, 2**32 + 7, 6, 1]
    table.restrict(4)
    assert kept(table) == [3, 4, 98, 99]


def test_of_one_epoch_the_rows_used_last_stay(make):
    table = make(kvemb.EpochTimestampRestrictPolicy())
    table.restrict_policy.set_epoch(7)
    table.lookup(np.arange(20))
    table.lookup([5])
    table.restrict_policy.set_epoch(6)  # an earlier day again
    table.lookup([50])
    table.restrict(2)
    assert kept(table) == [5, 19]


def test_an_epoch_is_a_number_of_a_variables_policy(make):
    policy = kvemb.EpochFrequencyRestrictPolicy()
    with pytest.raises(ValueError, match="must be bound to a variable"):
        policy.set_epoch(1)
    bound = make(policy).restrict_policy
    for wrong, error in ((-1, ValueError), (2**21, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="epoch must be"):
            bound.set_epoch(wrong)
    bound.set_epoch(2**21 - 1)
    top = checked_score(bound, np.array([2.0**32 - 2]), np.array([9]), 0.0)
    assert top.tolist() == [2.0**53 - 1]  # exact
    assert policy.epoch == 0


def test_rows_that_were_not_used_for_long_leave_and_are_not_served(make):
    table = make(kvemb.TimeToLiveRestrictPolicy(3, clock="steps"), initializer=9.0)
    for _ in range(4):
        table.lookup([3, 70])
    assert table.lookup([5], touch=False)[0].tolist() == pytest.approx([0.1, 0.11])
    assert bulk.restrict(table, 1000, dry_run=True) == 98
    assert table.size() == 100
    assert table.restrict(1000) == 98
    assert kept(table) == [3, 70]
    assert table.lookup([5], touch=False).tolist() == [[9, 9]]
    assert table.restrict(1000, trigger=5) == 0
    table.lookup([3])
    assert table.restrict(1) == 1
    assert kept(table) == [3]


def test_a_clock_that_goes_back_makes_no_row_older_hot_or_cold(open_store, tmp_path, monkeypatch):
    keys, clock = np.arange(100), [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    how = {"dim": 2, "hot_rows": 16, "restrict_policy": kvemb.TimeToLiveRestrictPolicy(ttl=100)}
    for seconds, expected in [(1000.0, 1000.0), (940.0, 1000.0), (990.0, 1000.0), (1001.0, 1001.0)]:
        clock[0] = seconds
        with open_store(tmp_path / "back") as store:
            table = store.get_variable("v", **how)
            if table.size() == 0:
                table.upsert(keys, np.ones((100, 2), np.float32))
            table.lookup(keys[::-1])
            table.restrict_policy.apply_update(keys)
            assert set(table.restrict_policy.status(keys).tolist()) == {expected}
            table.upsert([200], np.ones((1, 2), np.float32))
            assert table.restrict_policy.status([200]).tolist() == [seconds], "of a new row"
            table.remove([200])
            assert table.restrict(1000) == 0


def test_seconds_to_live_are_those_of_the_clock(make):
    table = make(kvemb.TimeToLiveRestrictPolicy(ttl=100))
    assert table.restrict(1000) == 0
    now = time.time()
    assert table.restrict_policy.min_score(now) == now - 100
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ttl must be finite and above 0"):
            kvemb.TimeToLiveRestrictPolicy(ttl=wrong)
    with pytest.raises(TypeError, match="ttl must be a number, got str '1'; a day has 86400 seconds"):
        kvemb.TimeToLiveRestrictPolicy(ttl="1")


def test_small_rows_leave_first(make):
    table = make(kvemb.NormRestrictPolicy)
    table.upsert([2, 97, 98], [[-5.0, 0], [0, 0.001], [float("nan"), 9]])
    table.lookup([97] * 50)
    assert table.restrict_policy.status(97) == 51  # uses, by which rows leave the hot tier
    table.restrict(3)
    assert kept(table) == [2, 96, 99]


# Admission.


def test_a_key_gets_a_row_at_its_third_sighting(make):
    table = make(kvemb.FrequencyRestrictPolicy, admission=kvemb.Admission(3), initializer=4.0)
    ones = np.ones((3, 2), np.float32)
    table.apply_gradients([500, 501, 7], ones)
    assert table.size() == 100
    assert table.lookup([500]).tolist() == [[4, 4]]
    assert table.lookup([7])[0].tolist() == pytest.approx([0.14 - 1, 0.15 - 1])
    table.apply_gradients([500], ones[:1])
    assert (table.size(), table.stats.refused) == (100, 3)
    table.apply_gradients([501, 500, 501], ones)
    assert table.size() == 102
    assert table.lookup([500, 501]).tolist() == [[3, 3], [2, 2]]
    assert (table.stats.refused, table.stats.bytes_sightings) == (3, 1 << 20)
    assert "refused gradients 3" in str(table.stats)
    table.upsert([600], [[1.0, 1]])
    assert table.size() == 103


def test_admission_works_with_a_constraint_and_two_devices(make):
    table = make(
        None, admission=kvemb.Admission(2, 4096), constraint=lambda rows: np.minimum(rows, 1), devices=["cpu", "cpu"]
    )
    table.apply_gradients([500, 1, 501], np.full((3, 2), -5, np.float32))
    assert table.size() == 100
    table.apply_gradients([500, 99], np.full((2, 2), -5, np.float32))
    assert table.size() == 101
    assert table.lookup([500, 1, 99, 501]).tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_admission_is_paid_for_and_checked(store, make):
    free = store.budget.free
    make(None, admission=kvemb.Admission(2, 1 << 16))
    store.drop_variable("v")
    assert store.budget.free == free
    with pytest.raises(ValueError, match="sightings of 'v'"):
        make(None, admission=kvemb.Admission(2, 1 << 30))
    assert store.budget.free == free
    assert list(store.variables) == []
    table = make(None, admission=kvemb.Admission(2))
    assert store.get_variable("v", admission=kvemb.Admission(2)) is table
    with pytest.raises(ValueError, match=r"'v' is open with admission=.*; leave it out"):
        store.get_variable("v", admission=kvemb.Admission(3))
    with pytest.raises(TypeError, match="admission must be an Admission, got 3"):
        store.get_variable("w", dim=1, admission=3)
    for arguments, error in (((0,), ValueError), ((256,), ValueError), ((2.0,), TypeError), ((2, 10), ValueError)):
        with pytest.raises(error, match="Admission"):
            kvemb.Admission(*arguments)
