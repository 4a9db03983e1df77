"""Statistics: plain numbers that add up and read well."""

from __future__ import annotations

import dataclasses

from kvemb.stats import Stats, TierSize


def test_a_hit_rate_needs_no_lookup():
    assert Stats().hit_rate == 0.0
    assert Stats(hits=3, misses=1).hit_rate == 0.75
    assert Stats(absent=5).hit_rate == 0.0


def test_no_hit_rate_is_told_before_a_row_is_looked_up():
    assert "no row looked up yet: hits 0, misses 0; absent keys 5" in str(Stats(absent=5))
    assert "hit rate 0.0%: hits 0, misses 1;" in str(Stats(misses=1))


def test_absent_keys_do_not_lower_the_hit_rate():
    stats = Stats(hits=3, misses=1, absent=96)
    assert stats.hit_rate == 0.75
    assert "hit rate 75.0%: hits 3, misses 1; absent keys 96" in str(stats)


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


def test_a_difference_has_the_hit_rate_of_the_interval():
    earlier, later = Stats(hits=0, misses=90), Stats(hits=9, misses=91)
    assert later.hit_rate == 0.09
    assert (later - earlier).hit_rate == 0.9


def test_every_figure_has_its_name():
    stats = Stats(hits=1, misses=3, bytes_hot=2048, rows=1234)
    figures = stats.as_dict()
    assert figures["hit_rate"] == 0.25
    assert figures["bytes_hot"] == 2048
    assert set(figures) == {field.name for field in dataclasses.fields(Stats)} | {"hit_rate"}
    assert "1,234 rows" in str(stats)
    assert "hit rate 25.0%" in str(stats)
    assert "2.0 KiB" in str(stats)


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
    try:
        with stats.timed("cold_write"):
            raise KeyError
    except KeyError:
        pass
    first = stats.seconds_cold_write
    assert first > 0
    with stats.timed("cold_write"):
        pass
    assert stats.seconds_cold_write > first
    assert stats.seconds_lookup == 0
