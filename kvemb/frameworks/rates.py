"""The learning rate of a variable's optimizer. Pure functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from kvemb.optimizers import Optimizer


def rate_of(rule: Optimizer) -> float:
    """Return the learning rate, which every optimizer has."""
    return float(vars(rule)["learning_rate"])


def with_rate(rule: Optimizer, rate: float) -> Optimizer:
    """Return the optimizer with another rate. Raises TypeError, ValueError for one that no step accepts."""
    made: Optimizer = replace(cast(Any, rule), learning_rate=rate)
    return made
