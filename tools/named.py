"""Optimizers and policies that `kvemb migrate` takes as text, such as "adam:0.1,clip_norm=1". Pure functions.

Both are as kvemb.bulk.described gives them: JSON, None for none.
"""

from __future__ import annotations

from typing import Any, Literal

import kvemb
from kvemb.tools.failures import WrongUsage
from kvemb.tools.reading import kind_name

# Of each name: the class, and the parameter that may follow it without its name.
Kinds = dict[str, tuple[Any, str | None]]
OPTIMIZERS: Kinds = {name: (kind, "learning_rate") for name, kind in kvemb.optimizers.KINDS.items()}
POLICIES: Kinds = {
    "frequency": (kvemb.FrequencyRestrictPolicy, "half_life"),
    "timestamp": (kvemb.TimestampRestrictPolicy, "clock"),
    "time_to_live": (kvemb.TimeToLiveRestrictPolicy, "ttl"),
    "epoch_frequency": (kvemb.EpochFrequencyRestrictPolicy, None),
    "epoch_timestamp": (kvemb.EpochTimestampRestrictPolicy, None),
    "norm": (kvemb.NormRestrictPolicy, None),
}
_ADVICE = {
    "optimizer": "sgd:0.1 (a learning rate) or adam:0.1,clip_norm=1",
    "policy": "frequency:1000 (a half-life in steps), timestamp:steps or time_to_live:86400 (seconds)",
}
_WORDS = {"true": True, "false": False, "none": None}


def named(
    option: Literal["optimizer", "policy"], text: str, before: dict[str, Any] | None = None
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return what a text names ("none": None), and the parameters that it gives. Raises WrongUsage.

    Parameters follow after a colon, all but one by name: "frequency:1000", "time_to_live:500,clock=steps". before: the
    present one; if it has the same name, the other parameters are its, otherwise the defaults.
    """
    kinds = OPTIMIZERS if option == "optimizer" else POLICIES
    name, colon, given = text.partition(":")
    if text == "none":
        return None, {}
    if name not in kinds:
        raise WrongUsage(f"--{option} must be none, {', '.join(kinds)}, got {text!r}")
    kind, first = kinds[name]
    known = _fields(kind().to_json())
    found: dict[str, Any] = {}
    try:
        for part in given.split(",") if colon else []:
            field, equals, value = part.rpartition("=")
            field = field if equals else first or ""
            if field not in known:
                raise ValueError(f"{name} has no parameter {field or value!r}; it has {', '.join(known) or 'none'}")
            found[field] = _value(value)
        others = _fields(before) if before is not None and kind_name(before) == name else {}
        return kind(**{**others, **found}).to_json(), found
    except (TypeError, ValueError) as error:
        raise WrongUsage(
            f"--{option} must be a name, or one with parameters, such as {_ADVICE[option]}, got {text!r}: {error}"
        ) from error


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return _WORDS.get(text, text)


def policy_text(policy: dict[str, Any] | None) -> str:
    """Return a policy as named() takes it; only the kind of one that POLICIES lacks."""
    name = kind_name(policy)
    if policy is None or name not in POLICIES:
        return name
    _, first = POLICIES[name]
    values = {field: value for field, value in _fields(policy).items() if value is not None}
    texts = {field: f"{value:.17g}" if isinstance(value, float) else str(value) for field, value in values.items()}
    begin = [texts.pop(first)] if first in texts else []
    parts = [*begin, *(f"{field}={text}" for field, text in texts.items())]
    return f"{name}:{','.join(parts)}" if parts else name


def _fields(described: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an optimizer or a policy."""
    return {field: value for field, value in described.items() if field not in ("name", "kind")}


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
