"""The policies that `kvemb migrate --policy` names as text, such as "frequency:1000". Pure functions.

Policies are as kvemb.bulk.described gives them: JSON, None for none.
"""

from __future__ import annotations

from typing import Any

import kvemb
from kvemb.tools.failures import WrongUsage
from kvemb.tools.reading import kind_name

# The class of each name, and the parameter that may follow it without its name.
POLICIES: dict[str, tuple[type[kvemb.RestrictPolicy], str | None]] = {
    "frequency": (kvemb.FrequencyRestrictPolicy, "half_life"),
    "timestamp": (kvemb.TimestampRestrictPolicy, "clock"),
    "time_to_live": (kvemb.TimeToLiveRestrictPolicy, "ttl"),
    "epoch_frequency": (kvemb.EpochFrequencyRestrictPolicy, None),
    "epoch_timestamp": (kvemb.EpochTimestampRestrictPolicy, None),
    "norm": (kvemb.NormRestrictPolicy, None),
}
_NUMBERS = frozenset({"half_life", "ttl"})


def policy_of(asked: str) -> dict[str, Any] | None:
    """Return the policy that a text names; "none": None. Raises WrongUsage.

    A parameter may follow after a colon, and others by name: "frequency:1000", "time_to_live:500,clock=steps".
    """
    name, colon, text = asked.partition(":")
    if asked == "none":
        return None
    if name not in POLICIES:
        raise WrongUsage(f"--policy must be none, {', '.join(POLICIES)}, got {asked!r}")
    kind, first = POLICIES[name]
    given: dict[str, Any] = {}
    try:
        for part in text.split(",") if colon else []:
            field, equals, value = part.rpartition("=")
            field = field if equals else first or ""
            if field not in _fields(kind):
                raise ValueError(
                    f"{name} takes {' and '.join(_fields(kind)) or 'no parameter'}, not {field or value!r}"
                )
            given[field] = float(value) if field in _NUMBERS else value
        return kind(**given).to_json()
    except (TypeError, ValueError) as error:
        raise WrongUsage(
            f"--policy must be a name, or one with parameters, such as frequency:1000 (a half-life in steps), "
            f"timestamp:steps or time_to_live:86400 (seconds), got {asked!r}: {error}"
        ) from None


def policy_text(policy: dict[str, Any] | None) -> str:
    """Return a policy as policy_of takes it; only the kind of one that POLICIES lacks."""
    name = kind_name(policy)
    if policy is None or name not in POLICIES:
        return name
    kind, first = POLICIES[name]
    values = {field: policy[field] for field in _fields(kind) if policy[field] is not None}
    texts = {field: f"{value:.17g}" if isinstance(value, float) else str(value) for field, value in values.items()}
    begin = [texts.pop(first)] if first in texts else []
    parts = [*begin, *(f"{field}={text}" for field, text in texts.items())]
    return f"{name}:{','.join(parts)}" if parts else name


def _fields(kind: type[kvemb.RestrictPolicy]) -> list[str]:
    """Return the names of a policy's parameters."""
    return [field for field in kind().to_json() if field != "kind"]


def have_one_scale(policy: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether the scores of one policy are those that the other would have given."""
    return _scale(policy) == _scale(other)


def _scale(policy: dict[str, Any] | None) -> dict[str, Any]:
    """Return the policy that computes the scores. Without one, and with norm, they are numbers of uses."""
    if policy is None or policy["kind"] == "norm":
        return kvemb.FrequencyRestrictPolicy().to_json()
    if policy["kind"] == "time_to_live":
        return kvemb.TimestampRestrictPolicy(policy["clock"]).to_json()
    return policy
