"""Bins: every number is counted once, outliers do not squeeze the others, and scales are chosen by what numbers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvemb.tools.report.axes import Linear, Log, Time
from kvemb.tools.report.bins import Bins, Kind, bins, percentiles


def filled(numbers: list[float] | np.ndarray, kind: Kind = Kind.ANY) -> Bins:
    values = np.asarray(numbers, np.float64)
    found = bins(values, float(values.min()), float(values.max()), kind)
    found.add(values)
    return found


NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60)


@given(numbers=NUMBERS, kind=st.sampled_from(Kind))
@example(numbers=[0.0, 5e-324], kind=Kind.ANY)
@example(numbers=[0.0, 4e-323], kind=Kind.ANY)
def test_every_number_is_in_one_bin(numbers, kind):
    if kind in (Kind.COUNT, Kind.STEP):
        numbers = [float(round(number)) for number in numbers]
    found = filled(numbers, kind)
    assert found.counts.sum() + found.under + found.over == len(numbers)
    places = [found.scale.position(float(edge)) for edge in found.edges]
    assert places == sorted(places)
    assert places[0] == pytest.approx(0)
    assert places[-1] == pytest.approx(1)
    assert found.scale.ticks()


CHANCE = np.random.default_rng(0)
COUNTS, NORMAL = CHANCE.zipf(1.5, 5000), CHANCE.normal(5, 1, 2000)


@pytest.mark.parametrize("outlier", [1e3, 1e9, -1e9, 1e300])
def test_one_outlier_squeezes_nothing(outlier):
    found = filled(np.append(NORMAL, outlier))
    assert found.under + found.over <= 10
    assert max(found.counts) < 300
    assert isinstance(found.scale, Linear)


def test_numbers_without_outliers_are_all_in_range():
    found = filled(np.linspace(-1, 1, 101))
    assert (found.edges[0], found.edges[-1], found.counts.sum()) == (-1, 1, 101)
    assert filled([5e-324, 1e-300, 1.0, 1e300, np.finfo(np.float64).max]).counts.sum() == 5


@pytest.mark.parametrize(
    ("numbers", "kind", "scale"),
    [
        (COUNTS, Kind.COUNT, Log),
        (np.arange(5000), Kind.COUNT, Linear),
        (COUNTS, Kind.STEP, Linear),
        ([5e-324, 1e-300, 1.0, 1e300, 1e308], Kind.ANY, Log),
        ([1.7e9, 1.70001e9], Kind.TIME, Time),
        ([1e17, 2e17], Kind.TIME, Linear),  # no calendar has them
    ],
)
def test_the_scale_follows_from_what_numbers_are(numbers, kind, scale):
    assert isinstance(filled(numbers, kind).scale, scale)


def test_zeros_have_a_bar_of_their_own_on_a_log_scale():
    found = filled([0.0] * 7 + [float(2**at) for at in range(12)] * 2, Kind.COUNT)
    assert found.counts_zeros
    assert found.under == 7
    assert found.counts[0] == 2


def test_whole_numbers_have_bins_of_as_many_numbers_each():
    found = filled(np.repeat(np.arange(100), 3), Kind.STEP)
    assert set(np.diff(found.edges)) == {4.0}
    assert set(found.counts) == {12}
    assert filled([3, 4, 4, 5], Kind.STEP).counts.tolist() == [1, 2, 1]
    assert filled(COUNTS, Kind.COUNT).counts[0] == (COUNTS == 1).sum()


def test_percentiles_are_numbers_that_are_there():
    assert percentiles(np.arange(101.0), 0, 100) == [
        *(("min", 0), ("1%", 1), ("25%", 25), ("median", 50), ("75%", 75), ("99%", 99), ("max", 100)),
    ]
