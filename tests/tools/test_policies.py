"""Policies that are named in text: what each text means, and which have scores of one scale."""

from __future__ import annotations

import pytest

import kvemb
from kvemb.tools.failures import WrongUsage
from kvemb.tools.policies import POLICIES, have_one_scale, policy_of, policy_text


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("frequency", kvemb.FrequencyRestrictPolicy()),
        ("frequency:1000", kvemb.FrequencyRestrictPolicy(half_life=1000.0)),
        ("timestamp:steps", kvemb.TimestampRestrictPolicy("steps")),
        ("time_to_live:3600", kvemb.TimeToLiveRestrictPolicy(3600.0)),
        ("time_to_live:500,clock=steps", kvemb.TimeToLiveRestrictPolicy(500.0, clock="steps")),
        ("epoch_frequency", kvemb.EpochFrequencyRestrictPolicy()),
        ("epoch_timestamp", kvemb.EpochTimestampRestrictPolicy()),
        ("norm", kvemb.NormRestrictPolicy()),
    ],
)
def test_a_text_names_a_policy(text, policy):
    assert policy_of(text) == policy.to_json()
    shown = policy_text(policy.to_json())
    assert policy_of(shown) == policy.to_json()
    assert shown.startswith(text)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("epoch_frequency:3", "epoch_frequency takes no parameter"),
        ("frequency:size=3", "frequency takes half_life, not 'size'"),
        ("time_to_live:5,size=3", "time_to_live takes ttl and clock, not 'size'"),
    ],
)
def test_an_unknown_parameter_is_named(text, advice):
    with pytest.raises(WrongUsage, match=advice):
        policy_of(text)


def test_a_policy_of_the_user_is_shown_by_its_kind():
    assert policy_text({"kind": "mine", "size": 3}) == "mine"


def test_none_is_no_policy():
    assert policy_of("none") is None
    assert policy_text(None) == "none"


def test_every_name_is_the_kind_of_its_policy():
    assert {name: kind.kind for name, (kind, _) in POLICIES.items()} == {name: name for name in POLICIES}


@pytest.mark.parametrize(
    "text",
    ["lru", "none:3", "frequency:", "frequency:x", "frequency:1,clock=3", "timestamp:days", "norm:1", ":1", ""],
)
def test_other_texts_are_refused(text):
    with pytest.raises(WrongUsage, match="--policy must be"):
        policy_of(text)


def test_scores_are_kept_where_both_policies_give_the_same():
    of = policy_of
    for one, other in ((None, "frequency"), ("norm", "frequency"), ("timestamp", "time_to_live:5")):
        assert have_one_scale(one and of(one), of(other))
    for one, other in (("frequency", "frequency:9"), ("timestamp", "time_to_live:5,clock=steps"), (None, "timestamp")):
        assert not have_one_scale(one and of(one), of(other))
