"""Calls that a thread makes for another process have the step and the time of that process."""

from __future__ import annotations

import threading

import numpy as np

import kvemb
from kvemb import timestamp
from kvemb.timestamp import Timestamp


def test_the_timestamp_belongs_to_the_block_and_to_its_thread():
    seen = []
    with timestamp.at(Timestamp(3, 1.5)):
        thread = threading.Thread(target=lambda: seen.append(timestamp.current_timestamp()))
        thread.start()
        thread.join()
        with timestamp.at(Timestamp(4, 2.0)):
            seen.append(timestamp.current_timestamp())
        seen.append(timestamp.current_timestamp())
    assert [*seen, timestamp.current_timestamp()] == [None, Timestamp(4, 2.0), Timestamp(3, 1.5), None]


def test_uses_are_counted_and_scored_at_the_timestamp(store):
    table = store.get_variable("table", dim=1, restrict_policy=kvemb.TimestampRestrictPolicy("steps"))
    table.upsert([1, 2], np.ones((2, 1), np.float32))
    with timestamp.at(Timestamp(7, 0.0)):
        table.lookup([1])
    table.lookup([2])
    with timestamp.at(Timestamp(6, 0.0)):  # a later one was seen: a step never goes back
        table.restrict_policy.apply_update([1])
    assert table.restrict_policy.status([1, 2]).tolist() == [8.0, 8.0]


def test_seconds_and_epochs_are_those_of_the_timestamp(store):
    timed = store.get_variable("timed", dim=1, restrict_policy=kvemb.TimestampRestrictPolicy())
    epochs = store.get_variable("epochs", dim=1, restrict_policy=kvemb.EpochTimestampRestrictPolicy())
    with timestamp.at(Timestamp(5, 123.25, epoch=2)):
        for table in (timed, epochs):
            table.upsert([1], [[1.0]])
            table.lookup([1])
    assert timed.restrict_policy.status([1]).tolist() == [123.25]
    assert epochs.restrict_policy.status([1]).tolist() == [2 * 2.0**32 + 5]


def test_an_optimizers_step_has_the_number_of_the_timestamp(store):
    adam = kvemb.optimizers.Adam(0.5, bias_correction="global")
    given, alone, first = (store.get_variable(name, dim=1, optimizer=adam, initializer=0.0) for name in "gaf")
    alone.apply_gradients([9], [[1.0]])
    alone.apply_gradients([9], [[1.0]])
    with timestamp.at(Timestamp(0, 0.0, optimizer_step=3)):
        given.apply_gradients([1, 1], [[1.0], [0.5]])
    for table in (alone, first):
        table.apply_gradients([1], [[1.5]])
    rows = [table.lookup([1])[0, 0] for table in (given, alone, first)]
    assert rows[0] == rows[1] != rows[2]
    given.apply_gradients([9], [[1.0]])  # the fourth: it goes on from there
    store.flush()
    assert [kvemb.bulk.described(table)["optimizer_steps"] for table in (given, alone, first)] == [4, 3, 1]
