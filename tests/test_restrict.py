"""Restrict policies and admission: the scores they give, what they refuse, and what they do to rows in both tiers.

Every policy is here.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvemb
from kvemb import bulk
from kvemb.errors import ReadOnly, SchemaMismatch, UnsupportedFormat
from kvemb.handle import Handle, inside
from kvemb.optimizers import SGD
from kvemb.restrict import (
    FrequencyRestrictPolicy,
    MissingPolicy,
    RestrictPolicy,
    ScoreRule,
    TimestampRestrictPolicy,
    TimeToLiveRestrictPolicy,
    as_policy,
    policy_class_name,
    policy_from_json,
)
from kvemb.restrict.policy import checked_score

BUILT_IN = [
    *(TimestampRestrictPolicy(), TimestampRestrictPolicy("steps")),
    *(FrequencyRestrictPolicy(), FrequencyRestrictPolicy(half_life=100.5)),
    *(kvemb.EpochTimestampRestrictPolicy(), kvemb.EpochFrequencyRestrictPolicy(), kvemb.NormRestrictPolicy()),
    TimeToLiveRestrictPolicy(5, clock="steps"),
]


def named(value):
    """A name for a case that is the same in every process."""
    return repr(value).split(" at 0x")[0]


class Doubling(RestrictPolicy):
    """A user's policy."""

    def score(self, old_score, count, now):
        return 2 * old_score + count


class Variable(Handle):
    """A variable whose rows record the calls."""

    def __init__(self):
        super().__init__(AskedRows())
        self.calls = inside(self).calls


class AskedRows:
    """A restrict.ScoredRows that records its calls."""

    def __init__(self):
        self.calls = []

    def record_uses(self, keys):
        self.calls.append(("uses", keys))

    def restrict(self, num_reserved, trigger):
        self.calls.append(("restrict", num_reserved, trigger))
        return 7

    def scores(self, keys):
        return np.full(np.shape(keys), 2.5)


def score_of(policy, *uses):
    """The score of one row after uses (count, now)."""
    score = np.array([policy.initial_score])
    for count, now in uses:
        score = checked_score(policy, score, np.array([count]), now)
    return float(score[0])


# Scores.


def test_scores_are_the_time_of_the_last_use_or_the_number_of_uses():
    for policy, score, rule in (
        (TimestampRestrictPolicy("steps"), 9.0, ScoreRule.LAST_USE),
        (FrequencyRestrictPolicy(), 6.0, ScoreRule.COUNT),
        (FrequencyRestrictPolicy(half_life=6), math.log2(2**0.5 + 5 * 2**1.5), ScoreRule.CUSTOM),
    ):
        assert score_of(policy, (1, 3.0), (5, 9.0)) == pytest.approx(score)
        assert policy.rule is rule


@given(
    st.floats(0.5, 1e4),
    st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2000)), min_size=1, max_size=20),
)
def test_decayed_scores_are_the_logarithm_of_the_decayed_count(half_life, uses):
    uses.sort(key=lambda use: use[1])
    end = uses[-1][1]
    decayed = sum(count * 2.0 ** ((now - end) / half_life) for count, now in uses)
    score = score_of(FrequencyRestrictPolicy(half_life), *((count, float(now)) for count, now in uses))
    assert score == pytest.approx(math.log2(decayed) + end / half_life, rel=1e-12, abs=1e-9)


def test_decayed_scores_do_not_overflow_however_late_it_is():
    policy = FrequencyRestrictPolicy(half_life=1)
    assert score_of(policy, (1, 1e15)) == 1e15
    assert score_of(policy, (1, 0.0), (1, 1e15)) == 1e15
    assert math.isfinite(score_of(policy, (2**40, 1e15), (2**40, 1e15)))


@pytest.mark.parametrize("policy", [*BUILT_IN, Doubling()], ids=named)
def test_a_score_does_not_depend_on_its_batch(policy):
    generator = np.random.default_rng(3)
    old, count = generator.random(1000) * 40, generator.integers(1, 50, 1000)
    scores = checked_score(policy, old, count, 1234.0)
    for at in [*range(40), 997, 998, 999]:
        assert checked_score(policy, old[at : at + 1], count[at : at + 1], 1234.0)[0] == scores[at]


def test_the_clock_is_steps_or_seconds():
    assert TimestampRestrictPolicy("steps").now(17) == 17.0
    before = time.time()
    assert before <= TimestampRestrictPolicy().now(17) <= time.time()
    assert FrequencyRestrictPolicy(half_life=3).now(17) == 17.0
    assert Doubling().now(17) == 17.0


@pytest.mark.parametrize("policy", [FrequencyRestrictPolicy(), FrequencyRestrictPolicy(half_life=4)], ids=repr)
@pytest.mark.parametrize("hot_rows", [16, 4096])
def test_lookups_are_uses_and_changes_are_not(store, policy, hot_rows):
    table = store.get_variable("x", dim=2, restrict_policy=policy, optimizer=SGD(), hot_rows=hot_rows)
    keys, rows = np.arange(200), np.ones((200, 2), np.float32)
    table.upsert(keys[:100], rows[:100])
    table.apply_gradients(keys, rows)
    made = table.restrict_policy.status(keys)
    assert len(np.unique(made)) == 1, "being made is a use, whoever makes it"
    table.upsert(keys, rows)
    table.apply_gradients(keys, rows)
    table.accum(keys, rows, rows, np.ones(200, bool))
    table.lookup(keys, touch=False)
    np.testing.assert_array_equal(table.restrict_policy.status(keys), made)
    table.lookup(keys)
    assert (table.restrict_policy.status(keys) > made).all()


def test_a_subclass_with_its_own_score_is_not_left_to_the_kernels():
    class Late(TimestampRestrictPolicy):
        def score(self, old_score, count, now):
            return old_score

    class Often(FrequencyRestrictPolicy):
        def score(self, old_score, count, now):
            return old_score

    class Started(FrequencyRestrictPolicy):
        initial_score = 5.0

    class Same(FrequencyRestrictPolicy):
        pass

    assert [made().rule for made in (Late, Often, Started)] == [ScoreRule.CUSTOM] * 3
    assert Same().rule is ScoreRule.COUNT


# A user's score.


def returning(result):
    class Given(RestrictPolicy):
        def score(self, old_score, count, now):
            return result

    return Given()


OLD, COUNT = np.array([1.0, 2.0]), np.array([1, 3])


def test_a_users_score_gets_copies_and_returns_any_real_numbers():
    class InPlace(RestrictPolicy):
        def score(self, old_score, count, now):
            old_score += count
            return old_score

    assert checked_score(Doubling(), OLD, COUNT, 0.0).tolist() == [3.0, 7.0]
    assert checked_score(Doubling(), OLD[:0], COUNT[:0], 0.0).shape == (0,)
    assert checked_score(InPlace(), OLD, COUNT, 0.0).tolist() == [2.0, 5.0]
    assert OLD.tolist() == [1.0, 2.0]
    for result in (np.array([1, 2], np.int32), np.array([1, 2], np.float32), [1, 2], [math.inf, -math.inf]):
        scores = checked_score(returning(result), OLD, COUNT, 0.0)
        assert (scores.dtype, scores.tolist()) == (np.float64, [float(each) for each in result])


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (np.array([1.0, math.nan]), ValueError, r"must not return NaN, got it from old_score=2.0, count=3"),
        *(
            (result, ValueError, "must return one score for each row")
            for result in (1.0, np.zeros(3), np.zeros((2, 1)))
        ),
        *(
            (result, TypeError, "must return real numbers")
            for result in (None, "ab", [1j, 2], [True, False], ["a", "b"])
        ),
    ],
)
def test_other_scores_are_refused_by_name(result, error, message):
    with pytest.raises(error, match=rf"Given\.score\(\) {message}"):
        checked_score(returning(result), OLD, COUNT, 0.0)


# The argument of get_variable.


def test_a_policy_is_given_as_a_class_or_an_instance():
    mine = Doubling()
    assert as_policy(None) is None
    assert as_policy(mine) is mine
    assert as_policy(FrequencyRestrictPolicy) == FrequencyRestrictPolicy()
    assert isinstance(as_policy(Doubling), Doubling)


@pytest.mark.parametrize("spec", ["timestamp", 3, ..., int, RestrictPolicy, RestrictPolicy()], ids=named)
def test_anything_else_is_refused(spec):
    with pytest.raises(TypeError, match="must"):
        as_policy(spec)


def test_a_class_that_wants_arguments_says_how_to_give_them():
    class Wanting(Doubling):
        def __init__(self, weight):
            self.weight = weight

    with pytest.raises(TypeError, match=r"Wanting must be made with arguments.*pass Wanting\(\.\.\.\)"):
        as_policy(Wanting)
    assert as_policy(Wanting(3)).weight == 3


def test_parameters_are_checked():
    for make, wrong in ((TimestampRestrictPolicy, {"clock": "minutes"}), (FrequencyRestrictPolicy, {"half_life": 0})):
        with pytest.raises(ValueError, match=f"^{make.__name__} {next(iter(wrong))} must be"):
            make(**wrong)
    with pytest.raises(TypeError, match="half_life must be a number"):
        FrequencyRestrictPolicy("3")

    class BadClock(Doubling):
        clock = "hours"

    class BadStart(Doubling):
        initial_score = math.nan

    with pytest.raises(ValueError, match="BadClock clock"):
        as_policy(BadClock)
    with pytest.raises(ValueError, match="BadStart initial_score"):
        as_policy(BadStart())


# Bound to a variable.


@dataclass(frozen=True)
class Weighted(RestrictPolicy):
    """A user's policy with a parameter, frozen."""

    weight: float = 2.0

    def score(self, old_score, count, now):
        return old_score + self.weight * count


@pytest.mark.parametrize("policy", [*BUILT_IN, Doubling(), Weighted(3.0)], ids=named)
def test_one_instance_serves_many_variables(policy):
    first, second = Variable(), Variable()
    one, two = policy.bind(first), policy.bind(second)
    assert (one.variable, two.variable) == (first, second)
    assert one.bind(second).variable is second
    assert one.variable is first
    assert type(one) is type(policy)
    assert one.to_json() == policy.to_json()
    assert (one.rule, one.initial_score, one.clock) == (policy.rule, policy.initial_score, policy.clock)
    with pytest.raises(ValueError, match=r"must be bound to a variable.*variable\.restrict_policy"):
        policy.apply_update([1])


def test_a_bound_policy_asks_its_variable():
    variable = Variable()
    policy = FrequencyRestrictPolicy().bind(variable)
    policy.apply_update([1, 1, 2])
    assert policy.apply_restriction(10) == 7
    assert policy.apply_restriction(np.int32(0), trigger=np.uint8(20)) == 7
    assert policy.status([[1, 2]]).tolist() == [[2.5, 2.5]]
    assert variable.calls == [("uses", [1, 1, 2]), ("restrict", 10, None), ("restrict", 0, 20)]
    assert all(type(value) is int for call in variable.calls[1:] for value in call[1:] if value is not None)


def test_num_reserved_and_trigger_are_counts():
    variable = Variable()
    policy = TimestampRestrictPolicy().bind(variable)
    for wrong, error, message in (
        *(({"num_reserved": value}, TypeError, "num_reserved must be an int") for value in (1.0, True, "3", [3], None)),
        *(({"num_reserved": 1, "trigger": value}, TypeError, "trigger must be an int") for value in (1.0, np.True_)),
        ({"num_reserved": -1}, ValueError, "num_reserved must be at least 0"),
        ({"num_reserved": 1, "trigger": -1}, ValueError, "trigger must be at least 0"),
        ({"num_reserved": 1, "treshold": 3}, TypeError, "unexpected keyword"),
    ):
        with pytest.raises(error, match=message):
            policy.apply_restriction(**wrong)
    assert variable.calls == []


# JSON.


@pytest.mark.parametrize("policy", BUILT_IN, ids=repr)
def test_json_brings_back_a_built_in_policy(policy):
    data = json.loads(json.dumps(policy.to_json()))
    assert policy_from_json(data) == policy
    assert policy_from_json(data).initial_score == policy.initial_score
    assert policy_class_name(data) == policy_class_name(policy) == policy.kind


def test_a_users_policy_is_remembered_by_its_class():
    assert policy_from_json(None) is policy_class_name(None) is None
    data = json.loads(json.dumps(Weighted(3.0).to_json()))
    assert policy_from_json(data) == MissingPolicy(data["class"])
    assert policy_from_json(data).to_json() == data
    assert policy_class_name(data) == policy_class_name(Weighted()) != policy_class_name(Doubling())
    assert policy_class_name(Weighted()).endswith(".Weighted")

    class Mine(FrequencyRestrictPolicy):
        pass

    assert policy_class_name(Mine()) != policy_class_name(FrequencyRestrictPolicy())


def test_unknown_json_is_refused():
    custom = [{"kind": "custom"}, {"kind": "custom", "class": 3}, {"kind": "custom", "class": "a.B", "x": 1}]
    for data in (
        *custom,
        {},
        3,
        {"kind": "lru"},
        {"kind": "timestamp", "clock": "hours"},
        {"kind": "frequency", "x": 1},
    ):
        with pytest.raises(UnsupportedFormat):
            policy_from_json(data)


# Policies over a variable in both tiers.


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


@pytest.mark.parametrize("policy", BUILT_IN, ids=repr)
def test_a_policy_is_stored_and_opened_again(open_store, tmp_path, policy):
    with open_store(tmp_path / "again") as store:
        store.get_variable("v", dim=2, restrict_policy=policy).upsert([1], [[1.0, 2]])
    with open_store(tmp_path / "again") as store:
        assert store.variables["v"].restrict_policy == policy
        assert store.get_variable("v", restrict_policy=policy).restrict_policy == policy
        with pytest.raises(SchemaMismatch, match="restrict_policy"):
            store.get_variable("v", restrict_policy=Doubling)


class TestAChangedPolicy:
    """Opened with other parameters, a table goes on with the scores that it has."""

    @pytest.mark.parametrize("seed", range(3))
    def test_uses_fade_at_the_rate_of_their_time(self, open_store, tmp_path, seed):
        chance, weights, caught = np.random.default_rng(seed), np.zeros(40), []
        for half_life in (5.0, 50.0, 2.0, 2.0, 8.0):
            with open_store(tmp_path / "store", durability="write" if seed else "checkpoint") as store:
                table = store.get_variable("v", dim=2, restrict_policy=FrequencyRestrictPolicy(half_life))
                table.upsert(np.flatnonzero(weights == 0), np.zeros((int((weights == 0).sum()), 2)))
                weights[weights == 0] = 1.0  # a new row has one use
                for _ in range(30):
                    keys = chance.integers(40, size=9)
                    weights *= 0.5 ** (1 / half_life)
                    np.add.at(weights, keys, 1.0)
                    table.lookup(keys)
                scores = table.restrict_policy.status(np.arange(40))
                np.testing.assert_allclose(scores - scores.max(), np.log2(weights / weights.max()), atol=1e-9)
                caught.append(table.restrict_policy)
        assert [policy.half_life for policy in caught] == [5.0, 50.0, 2.0, 2.0, 8.0]
        assert caught[2].to_json() == caught[3].to_json() != FrequencyRestrictPolicy(2.0).to_json()

    def test_it_is_logged_and_stored_and_left_out_it_is_the_stored_one(self, open_store, tmp_path, caplog):
        for asked, then in ((100.0, 100.0), (50.0, 50.0), (None, 50.0)):
            policy = None if asked is None else TimeToLiveRestrictPolicy(asked, clock="steps")
            with open_store(tmp_path / "store") as store:
                assert store.get_variable("v", dim=2, restrict_policy=policy).restrict_policy.ttl == then
        assert caplog.messages == [
            "the policy of variable 'v' becomes TimeToLiveRestrictPolicy(clock='steps', ttl=50.0); it was "
            "TimeToLiveRestrictPolicy(clock='steps', ttl=100.0)"
        ]

    def test_another_time_to_live_decides_from_now_on(self, open_store, tmp_path):
        with open_store(tmp_path / "store") as store:
            table = store.get_variable("v", dim=2, restrict_policy=TimeToLiveRestrictPolicy(100, clock="steps"))
            for key in range(10):
                table.upsert([key], [[1.0, 1.0]])
                table.lookup([key])
        table = open_store(tmp_path / "store").get_variable(
            "v", restrict_policy=TimeToLiveRestrictPolicy(3, clock="steps")
        )
        assert table.restrict(10) == 6
        assert kept(table) == [6, 7, 8, 9]

    def test_another_number_of_sightings_goes_on_counting(self, open_store, tmp_path):
        with open_store(tmp_path / "store") as store:
            table = store.get_variable("v", dim=2, optimizer=kvemb.optimizers.SGD(), admission=kvemb.Admission(9))
            table.apply_gradients([5, 5], np.ones((2, 2)))
        with open_store(tmp_path / "store") as store:
            table = store.get_variable("v", admission=kvemb.Admission(3))
            table.apply_gradients([5], np.ones((1, 2)))
            assert kept(table) == [5]

    @pytest.mark.parametrize(
        ("stored", "asked"),
        [
            (FrequencyRestrictPolicy(), FrequencyRestrictPolicy(5)),
            (FrequencyRestrictPolicy(5), FrequencyRestrictPolicy()),
            (TimeToLiveRestrictPolicy(5), TimeToLiveRestrictPolicy(5, clock="steps")),
        ],
        ids=repr,
    )
    def test_what_would_give_scores_another_scale_is_refused(self, open_store, tmp_path, stored, asked):
        with open_store(tmp_path / "store") as store:
            store.get_variable("v", dim=2, restrict_policy=stored)
        with open_store(tmp_path / "store") as store, pytest.raises(SchemaMismatch, match="'v' is stored with restr"):
            store.get_variable("v", restrict_policy=asked)

    def test_an_open_one_keeps_its_policy(self, store):
        policy = FrequencyRestrictPolicy(5.0)
        table = store.get_variable("v", dim=2, restrict_policy=policy)
        assert store.get_variable("v", restrict_policy=policy) is table
        with pytest.raises(
            ValueError, match=r"is open with restrict_policy=.*half_life=5.0\), got restrict_policy=.*9"
        ):
            store.get_variable("v", restrict_policy=FrequencyRestrictPolicy(9.0))

    def test_a_reader_shows_the_new_one_after_a_refresh_and_cannot_change_it(self, open_store, tmp_path):
        with open_store(tmp_path / "store") as store:
            store.get_variable("v", dim=2, restrict_policy=FrequencyRestrictPolicy(5.0), max_rows=7)
        with kvemb.open(tmp_path / "store", follow=True) as reader:
            table = reader.variables["v"]
            with open_store(tmp_path / "store") as store:
                store.get_variable("v", restrict_policy=FrequencyRestrictPolicy(9.0), max_rows=8)
            assert reader.refresh()
            assert (table.size(), table.restrict_policy.half_life, table.max_rows) == (0, 9.0, 8)
            assert table.restrict_policy.variable is table
        told = "cannot change max_rows, ttl or the policy of variable 'v'; leave them out"
        with kvemb.open(tmp_path / "store", read_only=True) as reader, pytest.raises(ReadOnly, match=told):
            reader.get_variable("v", restrict_policy=FrequencyRestrictPolicy(10.0))

    def test_what_is_no_origin_is_refused(self):
        with pytest.raises(TypeError, match="origin must be a number"):
            FrequencyRestrictPolicy(5.0, origin="1")
        with pytest.raises(ValueError, match=r"origin must be 0 without a half_life, got 1\.0"):
            FrequencyRestrictPolicy(origin=1)


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
    table = make(TimeToLiveRestrictPolicy(3, clock="steps"), initializer=9.0)
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
    how = {"dim": 2, "hot_rows": 16, "restrict_policy": TimeToLiveRestrictPolicy(ttl=100)}
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
    table = make(TimeToLiveRestrictPolicy(ttl=100))
    assert table.restrict(1000) == 0
    now = time.time()
    assert table.restrict_policy.min_score(now) == now - 100
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="ttl must be finite and above 0"):
            TimeToLiveRestrictPolicy(ttl=wrong)
    with pytest.raises(TypeError, match="ttl must be a number, got str '1'; a day has 86400 seconds"):
        TimeToLiveRestrictPolicy(ttl="1")


def test_small_rows_leave_first(make):
    table = make(kvemb.NormRestrictPolicy)
    table.upsert([2, 97, 98], [[-5.0, 0], [0, 0.001], [float("nan"), 9]])
    table.lookup([97] * 50)
    assert table.restrict_policy.status(97) == 51  # uses, by which rows leave the hot tier
    table.restrict(3)
    assert kept(table) == [2, 96, 99]


# Admission.


def test_a_key_gets_a_row_at_its_third_sighting(make):
    table = make(FrequencyRestrictPolicy, admission=kvemb.Admission(3), initializer=4.0)
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
