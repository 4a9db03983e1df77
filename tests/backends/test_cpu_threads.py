"""The parts of a batch: each is worked on once, and a part that fails is told."""

from __future__ import annotations

import threading

import pytest

from kvemb.backends.cpu_threads import cores, in_parts


def test_every_part_runs_once_and_there_are_more_than_cores():
    taken, lock = [], threading.Lock()

    def part(number, parts):
        with lock:
            taken.append((number, parts))

    in_parts(part)
    parts = taken[0][1]
    assert sorted(taken) == [(number, parts) for number in range(parts)]
    assert parts > cores()
    assert parts & (parts - 1) == 0


def test_what_a_part_raises_is_raised():
    def part(number, parts):
        if number == parts - 1:
            raise ValueError("the last part")

    with pytest.raises(ValueError, match="the last part"):
        in_parts(part)
