"""Statistics: plain numbers that add up and read well."""

from __future__ import annotations

import dataclasses

import pytest

from kvemb.stats import Stats, TierSize


@pytest.mark.parametrize(
    ("stats", "rate", "told"),
    [
        (Stats(absent=5), 0.0, "no row looked up yet: hits 0, misses 0; absent keys 5"),
        (Stats(misses=1), 0.0, "hit rate 0.0%: hits 0, misses 1;"),
        (Stats(hits=3, misses=1, absent=96), 0.75, "hit rate 75.0%: hits 3, misses 1; absent keys 96"),
    ],
)
def test_a_hit_rate_is_of_keys_that_have_a_row_and_needs_no_lookup(stats, rate, told):
    assert stats.hit_rate == rate
    assert told in str(stats)


def test_stats_add_up_field_by_field():
    names = [field.name for field in dataclasses.fields(Stats) if field.name != "tiers"]
    one, two = Stats(*range(len(names))), Stats(*range(0, 2 * len(names), 2))
    assert [getattr(one + two, name) for name in names] == [3 * at for at in range(len(names))]


def test_a_difference_has_the_counts_in_between_and_the_sizes_of_the_later_one():
    names = [field.name for field in dataclasses.fields(Stats) if field.name != "tiers"]
    tiers = {"host": TierSize(3, 16, 30)}
    earlier, later = Stats(*range(len(names))), Stats(*range(0, 3 * len(names), 3), tiers=tiers)
    between = later - earlier
    grown = [name for at, name in enumerate(names) if getattr(between, name) == 2 * at]
    kept = [name for at, name in enumerate(names) if at and getattr(between, name) == 3 * at]
    assert sorted(grown + kept) == sorted(names)
    assert kept == ["rows", "rows_hot", "rows_waiting", "bytes_hot", "bytes_cold", "bytes_sightings"]
    assert between.tiers == tiers
    assert between.tiers is not later.tiers, "a Stats can be changed"


def test_every_figure_has_its_name():
    stats = Stats(hits=1, misses=3, bytes_hot=2048, rows=1234)
    figures = stats.as_dict()
    assert figures["hit_rate"] == 0.25
    assert figures["bytes_hot"] == 2048
    assert set(figures) == {field.name for field in dataclasses.fields(Stats)} | {"hit_rate"}
    assert all(part in str(stats) for part in ("1,234 rows", "hit rate 25.0%", "2.0 KiB"))
    assert str(Stats(rows=1)).startswith("1 row: ")


def test_places_add_up_and_are_told_where_there_is_a_gpu():
    one = Stats(rows_hot=3, bytes_hot=30, tiers={"host": TierSize(3, 16, 30), "disk": TierSize(5, 0, 50)})
    two = Stats(tiers={"gpu:0": TierSize(1, 128, 2048), "host": TierSize(1, 16, 1024)})
    both = one + two
    assert both.tiers == {"host": TierSize(4, 32, 1054), "disk": TierSize(5, 0, 50), "gpu:0": TierSize(1, 128, 2048)}
    assert both.as_dict()["tiers"]["gpu:0"] == {"rows": 1, "cells": 128, "nbytes": 2048}
    assert one.hot == "3 hot in 30 B"
    assert two.hot == "1 hot on gpu:0 in 2.0 KiB, 1 in the host's memory in 1.0 KiB"


def test_time_is_added_where_it_was_spent_also_after_an_error():
    stats = Stats()
    with pytest.raises(KeyError), stats.timed("cold_write"):
        raise KeyError
    first = stats.seconds_cold_write
    assert first > 0
    with stats.timed("cold_write"):
        pass
    assert stats.seconds_cold_write > first
    assert stats.seconds_lookup == 0
