"""The parts of a batch: each is worked on once, and a part that fails is told."""

from __future__ import annotations

import os
import threading
import time

import pytest

from kvemb.backends import cpu_threads
from kvemb.backends.cpu_threads import in_parts, in_ranges
from kvemb.threads.parallel import cores


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


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_ranges_have_each_number_once(count, spread):
    taken = []
    in_ranges(count, lambda start, stop: taken.extend(range(start, stop)), spread=spread)
    assert sorted(taken) == list(range(count))


def test_what_a_part_raises_is_raised():
    def part(number, parts):
        if number == parts - 1:
            raise ValueError("the last part")

    with pytest.raises(ValueError, match="the last part"):
        in_parts(part)


def test_no_part_runs_on_when_another_has_failed(monkeypatch):
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    begun, failing, ended = threading.Event(), threading.Event(), threading.Event()
    caller = threading.current_thread()

    def part(number, parts):
        if threading.current_thread() is caller:
            assert begun.wait(60)
            failing.set()
            raise ValueError("the caller's part")
        if not begun.is_set():
            begun.set()
            assert failing.wait(60)  # so that the caller has a part, however late it is
            time.sleep(0.05)
            ended.set()

    with pytest.raises(ValueError, match="the caller's part"):
        in_parts(part)
    assert ended.is_set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    in_parts(lambda number, parts: None)
    both = threading.Barrier(2)
    child = os.fork()
    if not child:
        try:
            in_parts(lambda number, parts: both.wait(60))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
