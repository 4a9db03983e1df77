"""Scales: labels that differ, fit and are where they belong, whatever the ends."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvemb.tools.report.axes import Linear, Log, Time, local_time, number, side_by_side, stacked, top


def linear(low: float, share: float, whole: bool) -> Linear:
    high = low + max(abs(low), 1e-12) * share
    return Linear(low, high, whole=whole and high - low > 2)


SCALES = [
    st.builds(linear, st.floats(-1e301, 1e301), st.floats(1e-6, 1e6), st.booleans()),
    st.builds(
        lambda low, decades: Log(10.0**low, 10.0 ** min(low + decades, 305)), st.floats(-300, 300), st.floats(0.05, 300)
    ),
    st.builds(
        lambda low, decades: Time(low, min(low + 10.0**decades, 2.53e11)), st.floats(-6e10, 2.5e11), st.floats(-2, 9)
    ),
]


@pytest.mark.parametrize("scales", SCALES)
@given(data=st.data())
def test_labels_are_between_the_ends_in_order_differ_and_fit(scales, data):
    scale = data.draw(scales)
    for fit in (side_by_side, stacked):
        ticks = scale.ticks(fit)
        places, labels = [scale.position(value) for value, _ in ticks], [label for _, label in ticks]
        assert places == sorted(places)
        assert all(-1e-3 <= place <= 1.001 for place in places)
        assert len(set(labels)) == len(labels)
        assert fit(list(zip(places, labels, strict=True)))


def test_tenths_of_a_second_are_not_cut_off():
    labels = [label for _, label in Time(137439299072.75, 137439299073.06622).ticks(stacked)]
    assert len(labels) == 3
    assert [label[-2:] for label in labels] == [".8", ".9", ".0"]


def test_labels_are_round():
    assert [label for _, label in Linear(0, 20_000).ticks()] == ["0", "5k", "10k", "15k", "20k"]
    assert [label for _, label in Linear(0.1, 4.2).ticks()] == ["1", "2", "3", "4"]
    assert [label for _, label in Linear(0, 2, whole=True).ticks()] == ["0", "1", "2"]
    assert [label for _, label in Linear(1_000_000, 1_000_010).ticks()] == ["1,000,000", "1,000,005", "1,000,010"]
    assert [label for _, label in Log(0.5, 2e6).ticks()] == ["1", "10", "100", "1k", "10k", "100k", "1M"]
    assert [label for _, label in Log(0.5, 40, whole=True).ticks()] == ["1", "2", "5", "10", "20"]


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [
        (datetime(2026, 3, 1, 18), datetime(2026, 3, 5, 6), ["Mar 02", "Mar 03", "Mar 04", "Mar 05"]),
        (datetime(2026, 3, 1, 8, 1), datetime(2026, 3, 1, 11), ["09:00", "10:00", "11:00"]),
        (datetime(2026, 3, 1, 8, 0, 2), datetime(2026, 3, 1, 8, 0, 16), ["08:00:05", "08:00:10", "08:00:15"]),
        (datetime(2025, 11, 20), datetime(2026, 5, 2), ["2026-01-11", "2026-03-12"]),
        (
            *(datetime(2026, 3, 1, 8, 0, 36, 566_000), datetime(2026, 3, 1, 8, 0, 37, 838_000)),
            ["08:00:37.0", "08:00:37.5"],
        ),
    ],
)
def test_times_are_labelled_where_they_are_round(first, last, labels):
    assert [label for _, label in Time(first.timestamp(), last.timestamp()).ticks()] == labels


@given(values=st.lists(st.integers(0, 10**18) | st.floats(0.001, 1e6), max_size=5))
def test_an_axis_ends_at_a_label_above_its_values(values):
    end = top(values)
    ticks = Linear(0, end).ticks(stacked)
    assert end >= max(values, default=0.0) * (1 - 1e-9)
    assert ticks[-1][0] == pytest.approx(end)


def test_numbers_and_moments_are_for_people():
    assert [number(value) for value in (0, 0.12345, 1234, 12345, 1.8e9, 1e300)] == [
        *("0", "0.1235", "1234", "12.35k", "1.8G", "1e+300"),
    ]
    assert local_time(datetime(2026, 3, 1, 8, 1, 2).timestamp()) == "2026-03-01 08:01"
    assert local_time(datetime(2026, 3, 1, 8, 1, 2).timestamp(), seconds=True) == "2026-03-01 08:01:02"
    assert local_time(1e18) == "1e+18"
