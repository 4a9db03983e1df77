"""Limits of internal steps: which there are, their range, and that they are frozen."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from kvemb.checks.ranges import MAX_ROWS
from kvemb.limits import DEFAULT, Limits

NAMES = [field.name for field in fields(Limits)]


def test_limits_are_equal_by_their_numbers_and_frozen():
    assert Limits() == DEFAULT
    assert Limits(scan_rows=7) != DEFAULT
    with pytest.raises(FrozenInstanceError):
        DEFAULT.scan_rows = 7


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_a_number_from_1_on(name):
    for value in (1, MAX_ROWS):
        assert getattr(Limits(**{name: value}), name) == value
    for wrong in (0, -1, MAX_ROWS + 1):
        with pytest.raises(ValueError, match=f"Limits {name} must be"):
            Limits(**{name: wrong})
    for wrong in (1.5, True, "7", None):
        with pytest.raises(TypeError, match=f"Limits {name} must be"):
            Limits(**{name: wrong})


def test_a_number_of_numpys_becomes_pythons():
    assert type(Limits(scan_rows=np.int32(7)).scan_rows) is int
