"""Checks of an optimizer's hyperparameters, which are the fields of a frozen dataclass."""

from __future__ import annotations

import math
import numbers
from dataclasses import fields
from typing import Any

import numpy as np

from kvemb.checks.brief import brief


def check_fields(target: Any) -> None:
    """Check each field by the type of its default, and convert numbers to floats. Raises TypeError, ValueError.

    If the default is a float, the value must be finite and at least 0 (at most 0 if the default is negative). If it is
    None, the value must be None, or finite and above 0. If it is a bool, the value must be a bool. The class itself
    checks a str.
    """
    for field in fields(target):
        given, what = getattr(target, field.name), f"{type(target).__name__} {field.name}"
        if isinstance(field.default, bool):
            if not isinstance(given, (bool, np.bool_)):
                raise TypeError(f"{what} must be True or False, got {type(given).__name__} {brief(given)}")
            object.__setattr__(target, field.name, bool(given))
        elif isinstance(field.default, float) or (field.default is None and given is not None):
            object.__setattr__(target, field.name, _as_float(given, what, field.default))


def _as_float(given: Any, what: str, default: float | None) -> float:
    """Return a number as check_fields requires it. Raises TypeError, ValueError."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, numbers.Real):
        raise TypeError(f"{what} must be a number, got {type(given).__name__} {brief(given)}")
    try:
        value = float(given)
    except OverflowError:
        value = math.inf
    if default is None:
        fine, wanted = value > 0, "above 0"
    else:
        fine, wanted = (value <= 0, "at most 0") if default < 0 else (value >= 0, "at least 0")
    if not (math.isfinite(value) and fine):
        raise ValueError(f"{what} must be finite and {wanted}, got {brief(given)}")
    return value


def check_at_most(target: Any, most: float, *names: str) -> None:
    """Raise ValueError unless each of these fields is at most `most`."""
    for name in names:
        if getattr(target, name) > most:
            raise ValueError(f"{type(target).__name__} {name} must be at most {most}, got {getattr(target, name)}")


def check_above_zero(target: Any, name: str, why: str) -> None:
    """Raise ValueError, with the reason, if a field is 0."""
    if getattr(target, name) == 0:
        raise ValueError(f"{type(target).__name__} {name} must be above 0, got 0: {why}")
