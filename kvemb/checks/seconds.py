"""Durations in arguments: a number of seconds everywhere; text such as "10min" is refused. A pure function."""

from __future__ import annotations

import datetime
from typing import Any

from kvemb.checks.brief import brief
from kvemb.checks.numeric import Number, as_number, is_number
from kvemb.checks.ranges import MAX_SECONDS


def as_seconds(value: Any, what: str, *, least: float | None = None) -> Number:
    """Return a duration as a Python number of seconds, at least `least`, None: above 0; and at most MAX_SECONDS.

    Raises, naming `what`, TypeError if it is not a real number, ValueError if it is out of range.
    """
    if not is_number(value):
        how = "; pass its total_seconds()" if isinstance(value, datetime.timedelta) else ""
        raise TypeError(
            f"{what} must be a number of seconds, such as 600 for ten minutes, got {type(value).__name__} "
            f"{brief(value)}{how}"
        )
    seconds = as_number(value, what)
    if not (seconds > 0 if least is None else least <= seconds) or not seconds <= MAX_SECONDS:
        allowed = "above 0" if least is None else f"at least {least}"
        raise ValueError(f"{what} must be a number of seconds, {allowed}, at most {MAX_SECONDS:,}, got {brief(value)}")
    return seconds
