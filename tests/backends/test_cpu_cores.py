"""Threads of a pool leave the core of their caller to it."""

from __future__ import annotations

import os
import threading

import pytest

from kvemb.backends import cpu_cores
from kvemb.backends.cpu_cores import OtherCores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity of threads")
def test_threads_avoid_the_core_of_their_last_caller(monkeypatch):
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core")
    threads, added, done = OtherCores(), threading.Event(), threading.Event()

    def work():
        threads.add_this_thread()
        added.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    added.wait()
    first, second, *_ = mine
    for core in (first, second):
        monkeypatch.setattr(cpu_cores, "_sched_getcpu", lambda core=core: lambda: core)
        threads.avoid_this_core()
        assert os.sched_getaffinity(thread.native_id) == mine - {core}
    # A caller that may use one core only: there is no other.
    os.sched_setaffinity(0, {first})
    try:
        monkeypatch.setattr(cpu_cores, "_sched_getcpu", lambda: lambda: first)
        threads.avoid_this_core()
    finally:
        os.sched_setaffinity(0, mine)
    assert os.sched_getaffinity(thread.native_id) == mine - {second}
    done.set()
    thread.join()


@pytest.mark.parametrize("ask", [None, lambda: -1])
def test_where_the_system_does_not_say_the_core_nothing_changes(monkeypatch, ask):
    monkeypatch.setattr(cpu_cores, "_sched_getcpu", lambda: ask)
    threads, before = OtherCores(), os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    threads.add_this_thread()
    threads.avoid_this_core()
    if before is not None:
        assert os.sched_getaffinity(0) == before
