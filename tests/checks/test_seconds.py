"""Durations: numbers of seconds, and the message for anything else."""

from __future__ import annotations

import datetime
from fractions import Fraction

import numpy as np
import pytest

from kvemb.checks.seconds import as_seconds


@pytest.mark.parametrize("value", [600, 0.5, np.float32(0.5), np.int64(30), Fraction(1, 2)], ids=repr)
def test_a_duration_is_a_number_of_seconds(value):
    assert as_seconds(value, "every") == value


@pytest.mark.parametrize(
    ("value", "got"),
    [
        *(("10min", "str '10min'"), ("600", "str '600'"), (True, "bool True"), ([600], r"list \[600\]")),
        *((None, "NoneType None"), (np.timedelta64(600, "s"), "timedelta64 ")),
        (datetime.timedelta(minutes=10), r"timedelta .*; pass its total_seconds\(\)$"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused_with_an_example(value, got):
    with pytest.raises(TypeError, match=f"every must be a number of seconds, such as 600 for ten minutes, got {got}"):
        as_seconds(value, "every")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 10**9 + 1], ids=repr)
def test_a_number_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="every must be a number of seconds, above 0, at most 1,000,000,000, got"):
        as_seconds(value, "every")


def test_the_least_may_be_given():
    assert as_seconds(0, "timeout", least=0) == 0
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds, at least 0, at most .* got -1"):
        as_seconds(-1, "timeout", least=0)
