"""The parts of a batch: each is worked on once, by whatever threads, and a thread that fails is told."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest

from kvemb.backends import cpu_threads, openmp
from kvemb.backends.cpu_threads import even_bounds, in_parts, joined_parts, part_count, run_parts
from kvemb.threads.parallel import cores

ON_THREAD = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GOMP_PARALLEL = ctypes.CFUNCTYPE(None, ON_THREAD, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def add_to_part(number, arguments):
    taken, more = arguments
    taken[number] += more


add_in_parts = in_parts(add_to_part)


@GOMP_PARALLEL
def three_threads(function, data, threads, flags):
    """GOMP_parallel, with threads of Python; like it, it works on the caller's thread, too."""
    team = [threading.Thread(target=function, args=(data,)) for _ in range(2)]
    for thread in team:
        thread.start()
    function(data)
    for thread in team:
        thread.join()


@pytest.mark.parametrize(
    "team", [0, ctypes.cast(three_threads, ctypes.c_void_p).value], ids=["our own threads", "a team of three"]
)
def test_every_part_runs_once_and_there_are_more_than_cores(monkeypatch, team):
    monkeypatch.setattr(openmp, "team", lambda: team)
    parts = part_count()
    taken = np.zeros(parts, np.int64)
    run_parts(add_in_parts, taken, 1)
    run_parts(add_in_parts, taken, 2)
    assert taken.tolist() == [3] * parts
    assert parts > cores()
    assert parts & (parts - 1) == 0


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_ranges_have_each_number_once(count):
    bounds = even_bounds(count)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, count, part_count() + 1)
    assert (np.diff(bounds) >= 0).all()
    assert np.diff(bounds).max() <= count // part_count() + 1


def test_results_of_parts_are_joined():
    values, bounds = np.arange(10, 22), np.array([0, 5, 5, 9, 12])
    assert joined_parts(values, bounds, np.array([2, 0, 1, 3])).tolist() == [10, 11, 15, 19, 20, 21]
    assert joined_parts(values, bounds, np.zeros(4, np.int64)).tolist() == []


# What a kernel cannot do, a function can: fail, and wait for another thread.


def test_what_another_thread_raises_is_raised(monkeypatch):
    monkeypatch.setattr(openmp, "team", lambda: 0)
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    caller, raised = threading.current_thread(), threading.Event()

    def work(team, number, parts, arguments):
        if threading.current_thread() is caller:
            assert raised.wait(60)
        else:
            raised.set()
            raise ValueError("the other thread")

    with pytest.raises(ValueError, match="the other thread"):
        run_parts(work)


def test_no_thread_works_on_when_the_caller_has_failed(monkeypatch):
    monkeypatch.setattr(openmp, "team", lambda: 0)
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    begun, failing, ended = threading.Event(), threading.Event(), threading.Event()
    caller = threading.current_thread()

    def work(team, number, parts, arguments):
        if threading.current_thread() is caller:
            assert begun.wait(60)
            failing.set()
            raise ValueError("the caller")
        begun.set()
        assert failing.wait(60)
        time.sleep(0.05)
        ended.set()

    with pytest.raises(ValueError, match="the caller"):
        run_parts(work)
    assert ended.is_set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    run_parts(add_in_parts, np.zeros(part_count(), np.int64), 1)
    both = threading.Barrier(2)
    child = os.fork()
    if not child:
        try:
            run_parts(lambda team, number, parts, arguments: both.wait(60))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
