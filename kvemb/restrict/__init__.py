"""Restrict policies, which score rows by importance; conversion from arguments and from JSON.

A policy decides and never acts. The names here are public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvemb.checks.declared import from_json
from kvemb.checks.numeric import as_choice
from kvemb.restrict.admission import Admission
from kvemb.restrict.epoch_policies import EpochFrequencyRestrictPolicy, EpochTimestampRestrictPolicy
from kvemb.restrict.frequency import FrequencyRestrictPolicy
from kvemb.restrict.missing import MissingPolicy
from kvemb.restrict.norm import NormRestrictPolicy
from kvemb.restrict.policy import CLOCKS, Counts, RestrictPolicy, ScoredRows, ScoreRule, Scores
from kvemb.restrict.time_to_live import TimeToLiveRestrictPolicy
from kvemb.restrict.timestamp import TimestampRestrictPolicy

__all__ = [
    "Admission",
    "Counts",
    "EpochFrequencyRestrictPolicy",
    "EpochTimestampRestrictPolicy",
    "FrequencyRestrictPolicy",
    "MissingPolicy",
    "NormRestrictPolicy",
    "RestrictPolicy",
    "ScoreRule",
    "ScoredRows",
    "Scores",
    "TimeToLiveRestrictPolicy",
    "TimestampRestrictPolicy",
    "as_policy",
    "policy_class_name",
    "policy_from_json",
]

_KINDS: dict[str, type[RestrictPolicy]] = {
    kind.kind: kind
    for kind in (
        TimestampRestrictPolicy,
        FrequencyRestrictPolicy,
        EpochTimestampRestrictPolicy,
        EpochFrequencyRestrictPolicy,
        TimeToLiveRestrictPolicy,
        NormRestrictPolicy,
    )
}


def as_policy(spec: Any) -> RestrictPolicy | None:
    """Return the policy of a `restrict_policy` argument.

    Args:
        spec: None, a RestrictPolicy, or a subclass of it, which is instantiated without arguments.

    Returns:
        The policy; None for None.

    Raises:
        TypeError: spec is anything else, a class that must be made with arguments, or a policy without `score`.
        ValueError: The policy has an unknown clock, or an initial_score of NaN.
    """
    if spec is None:
        return None
    policy = spec
    if isinstance(spec, type) and issubclass(spec, RestrictPolicy):
        try:
            policy = spec()
        except TypeError as error:
            name = spec.__name__
            raise TypeError(f"restrict_policy {name} must be made with arguments: {error}; pass {name}(...)") from error
    if not isinstance(policy, RestrictPolicy):
        raise TypeError(
            f"restrict_policy must be None, a RestrictPolicy or a subclass of it, got {spec!r}; "
            "use a policy such as kvemb.FrequencyRestrictPolicy(), or subclass RestrictPolicy"
        )
    if type(policy).score is RestrictPolicy.score:
        raise TypeError(f"restrict_policy {type(policy).__name__} must define score(self, old_score, count, now)")
    as_choice(policy.clock, f"{type(policy).__name__} clock", among=CLOCKS)
    if math.isnan(policy.initial_score):
        raise ValueError(f"{type(policy).__name__} initial_score must be a number, got NaN; -inf and inf are allowed")
    return policy


def policy_from_json(data: Mapping[str, Any] | None) -> RestrictPolicy | None:
    """Return the policy that to_json() described.

    Args:
        data: A mapping with "kind" and the parameters, or None.

    Returns:
        The policy; None for None, a MissingPolicy for a user-defined one.

    Raises:
        UnsupportedFormat: The kind or a parameter is unknown, or a parameter's value is invalid.
    """
    if data is None:
        return None
    if isinstance(data, Mapping) and data.get("kind") == "custom" and len(data) == 2 and type(data.get("class")) is str:
        return MissingPolicy(data["class"])
    return from_json(data, "kind", _KINDS, "restrict policy")


def policy_class_name(policy: RestrictPolicy | Mapping[str, Any] | None) -> str | None:
    """Return the class name of a policy or of its JSON, so that two policies can be compared.

    Args:
        policy: A policy, its to_json(), or None.

    Returns:
        The kind of a built-in class, the module and qualified name of a user-defined class; None for None.
    """
    if policy is None:
        return None
    data = policy.to_json() if isinstance(policy, RestrictPolicy) else policy
    return str(data["class"] if data["kind"] == "custom" else data["kind"])
