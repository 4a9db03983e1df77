"""Optimizers and policies that are named in text: what each text means, and which policies have scores of one scale."""

from __future__ import annotations

import pytest

import kvemb
from kvemb.tools.failures import WrongUsage
from kvemb.tools.named import OPTIMIZERS, POLICIES, have_one_scale, named, policy_text


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
    assert named("policy", text)[0] == policy.to_json()
    shown = policy_text(policy.to_json())
    assert named("policy", shown)[0] == policy.to_json()
    assert shown.startswith(text)


def test_what_is_not_given_is_the_present_ones_or_the_default():
    present = kvemb.optimizers.Adam(0.5, beta_1=0.25).to_json()
    text = "adam:beta_2=0.5,clip_norm=none,decoupled=true"
    expected = kvemb.optimizers.Adam(0.5, beta_1=0.25, beta_2=0.5, decoupled=True).to_json()
    given = {"beta_2": 0.5, "clip_norm": None, "decoupled": True}
    assert named("optimizer", text, present) == (expected, given)
    assert named("optimizer", "sgd", present) == (kvemb.optimizers.SGD().to_json(), {})
    assert named("optimizer", "none", present) == (None, {})


def test_a_policy_of_the_user_is_shown_by_its_kind():
    assert policy_text({"kind": "mine", "size": 3}) == "mine"
    assert policy_text(None) == "none"


def test_every_name_is_that_of_its_class():
    assert {name: kind.kind for name, (kind, _) in POLICIES.items()} == {name: name for name in POLICIES}


@pytest.mark.parametrize(
    ("option", "text", "advice"),
    [
        ("policy", "lru", f"--policy must be none, {', '.join(POLICIES)}, got 'lru'"),
        *(("policy", text, "--policy must be none, freq") for text in ("none:3", ":1", "")),
        *(("policy", text, "such as frequency:1000 (a half-life") for text in ("frequency:", "frequency:x")),
        *(("policy", text, "such as frequency:1000 (a half-life") for text in ("timestamp:days", "time_to_live:=3")),
        ("policy", "norm:1", "norm has no parameter '1'; it has none"),
        ("policy", "time_to_live:5,size=3", "time_to_live has no parameter 'size'; it has ttl, clock"),
        ("optimizer", "adamx:1", f"--optimizer must be none, {', '.join(OPTIMIZERS)}, got 'adamx:1'"),
        ("optimizer", "none:1", "--optimizer must be none, sgd"),
        *(("optimizer", text, f"got {text!r}: SGD learning_rate must be") for text in ("sgd:fast", "sgd:-1", "sgd:")),
        ("optimizer", "sgd:0.1,speed=2", "such as sgd:0.1 (a learning rate) or adam:0.1,clip_norm=1, got 'sgd:0.1,s"),
        ("optimizer", "sgd:0.1,speed=2", "sgd has no parameter 'speed'; it has learning_rate, clip_"),
        ("optimizer", "adam:beta_1=2", "got 'adam:beta_1=2': Adam beta_1 must be finite and at least 0 and at most"),
    ],
)
def test_other_texts_are_refused(option, text, advice):
    with pytest.raises(WrongUsage) as refused:
        named(option, text)
    assert advice in str(refused.value)


def test_scores_are_kept_where_both_policies_give_the_same():
    def one_scale(*texts):
        return have_one_scale(*(named("policy", text)[0] for text in texts))

    for one, other in (("none", "frequency"), ("norm", "frequency"), ("timestamp", "time_to_live:5")):
        assert one_scale(one, other)
    for one, other in (
        ("frequency", "frequency:9"),
        ("timestamp", "time_to_live:5,clock=steps"),
        ("none", "timestamp"),
    ):
        assert not one_scale(one, other)
