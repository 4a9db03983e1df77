"""Work over threads: each piece once, failures kept in their places, Ctrl-C, forks."""

from __future__ import annotations

import os
import threading
from unittest.mock import Mock

import pytest

from kvemb.threads import parallel
from kvemb.threads.parallel import cores, free_cores, run_each


def appending(ran):
    """Twenty pieces of work, each of which appends its number."""
    return [lambda number=number: ran.append(number) for number in range(20)]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_each_runs_once(threads):
    ran: list[int] = []
    assert run_each(appending(ran), threads) == [None] * 20
    assert sorted(ran) == list(range(20))


def test_pieces_run_at_the_same_time():
    both = threading.Barrier(2, timeout=60)
    assert run_each([both.wait, both.wait], 2) == [None, None]


def test_a_failure_stops_no_other_piece():
    ran: list[int] = []
    failures = run_each([Mock(side_effect=ValueError("the first")), *appending(ran)], 2)
    assert [str(failure) for failure in failures if failure] == ["the first"]
    assert failures[0] is not None
    assert sorted(ran) == list(range(20))


def test_after_an_interrupt_nothing_begins():
    ran: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_each([Mock(side_effect=KeyboardInterrupt), *appending(ran)], 1)
    assert ran == []


def test_an_interrupt_leaves_no_thread_at_work(monkeypatch):
    class Interrupted(set):
        def add(self, thread):
            super().add(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(parallel, "_working", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run_each([Mock()], 1)
    assert not parallel._working


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    both = threading.Barrier(2, timeout=60)
    run_each([both.wait, both.wait], 2)
    child = os.fork()
    if child == 0:
        both = threading.Barrier(2, timeout=60)
        os._exit(0 if run_each([both.wait, both.wait], 2) == [None, None] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_cores_are_free_where_no_other_thread_works(monkeypatch):
    monkeypatch.setattr(parallel, "cores", lambda: 8)
    both, free = threading.Barrier(2, timeout=60), []

    def look():
        both.wait()
        run_each([Mock()], 1)  # a nested call, which does not end the work of this thread
        both.wait()
        free.append(free_cores())
        both.wait()

    assert run_each([look, look], 2) == [None, None]
    assert free == [7, 7]
    assert free_cores() == 8
    monkeypatch.setattr(parallel, "cores", lambda: 1)
    assert run_each([look, look], 2) == [None, None]
    assert free[2:] == [1, 1]


def test_there_is_a_core():
    assert cores() >= 1
