"""Cold reads have as many threads as cores, and more only while they wait for the disk."""

from __future__ import annotations

import pytest

from kvemb.threads.disk_waits import KEYS_PER_WAIT, ReadThreads, disk_waits
from kvemb.threads.parallel import MAX_THREADS, cores


def test_threads_follow_the_waits_of_the_last_reads():
    waits = [0]
    threads = ReadThreads(lambda: waits[0])
    few = min(cores(), MAX_THREADS)
    seen = []
    for waited in (0, 2, 1, 0):
        with threads.reading(2 * KEYS_PER_WAIT) as count:
            seen.append(count)
            waits[0] += waited
    assert [*seen, threads.threads] == [MAX_THREADS, few, MAX_THREADS, few, few]


def test_reads_that_fail_change_nothing():
    threads = ReadThreads(lambda: 0)
    with pytest.raises(OSError, match="disk"), threads.reading(1):
        raise OSError("disk")
    assert threads.threads == MAX_THREADS


def test_waits_are_counted_by_the_system():
    before = disk_waits()
    assert 0 <= before <= disk_waits()
