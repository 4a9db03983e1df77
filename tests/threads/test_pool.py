"""Pools of threads: what is done with work that they are given, and that they work until the program has ended."""

from __future__ import annotations

import gc
import subprocess
import textwrap
import threading
import time
from unittest.mock import Mock

import pytest
from programs import run_python
from quick import quick

import kvemb
from kvemb.threads.pool import Threads

PATIENCE = 120  # seconds


def of_pool(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def wait_until_gone(name: str) -> None:
    end = time.monotonic() + PATIENCE
    while of_pool(name):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_work_is_done_in_order_by_one_thread() -> None:
    pool, done = Threads(1, thread_name_prefix="one"), []
    futures = [pool.submit(lambda number: done.append((number, threading.current_thread())), i) for i in range(50)]
    pool.shutdown()
    assert [number for number, _ in done] == list(range(50))
    assert len({thread for _, thread in done}) == 1
    assert all(future.done() for future in futures)
    assert of_pool("one") == []


def test_results_and_errors_are_those_of_the_function() -> None:
    pool = Threads(2)
    assert pool.submit(divmod, 7, 2).result(PATIENCE) == (3, 1)
    assert pool.submit(int, "11", base=2).result(PATIENCE) == 3
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 7, 0).result(PATIENCE)
    assert list(pool.map(abs, [-1, 2, -3])) == [1, 2, 3]
    pool.shutdown()


def test_as_many_threads_start_as_are_needed() -> None:
    pool, release = Threads(3, thread_name_prefix="some"), threading.Event()
    assert of_pool("some") == []
    for _ in range(5):
        pool.submit(int).result(PATIENCE)
        pool._idle.get(timeout=PATIENCE)  # its thread waits for work
        pool._idle.put(None)
    assert len(of_pool("some")) == 1
    futures = [pool.submit(release.wait, PATIENCE) for _ in range(9)]
    assert len(of_pool("some")) == 3
    release.set()
    assert all(future.result(PATIENCE) for future in futures)
    pool.shutdown()
    assert of_pool("some") == []


def test_the_first_thread_may_start_at_once_and_each_calls_the_initializer() -> None:
    called: list[str] = []
    pool = Threads(
        1, thread_name_prefix="ready", initializer=lambda: called.append(threading.current_thread().name), started=True
    )
    assert len(of_pool("ready")) == 1
    pool.shutdown()
    assert called == ["ready_0"]


def test_after_shutdown_work_is_refused_and_what_waits_may_be_cancelled() -> None:
    pool, release = Threads(1, thread_name_prefix="few"), threading.Event()
    first = pool.submit(release.wait, PATIENCE)
    second, third = pool.submit(int), pool.submit(int)
    assert second.cancel()
    while not first.running():
        time.sleep(0.01)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="the threads 'few' have ended"):
        pool.submit(int)
    release.set()
    pool.shutdown()
    assert (first.result(), second.cancelled(), third.cancelled()) == (True, True, True)


def test_the_threads_of_a_pool_that_nothing_refers_to_end() -> None:
    pool = Threads(2, thread_name_prefix="lost", started=True)
    future = pool.submit(int)
    del pool
    gc.collect()
    assert future.result(PATIENCE) == 0
    wait_until_gone("lost")


def test_where_no_thread_can_be_started_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Threads(2, thread_name_prefix="none")
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    assert pool.submit(threading.current_thread).result(0) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 7, 0).result(0)
    monkeypatch.undo()
    assert pool.submit(threading.current_thread).result(PATIENCE) is not threading.current_thread()
    pool.shutdown()


def ended(tmp_path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in tmp_path, with a store that has 5,000 dirty rows."""
    begin = """
        import atexit, logging, threading
        import numpy as np
        import kvemb

        logging.disable()
        store = kvemb.open("store", memory_budget="8MiB")
        table = store.get_variable("table", dim=16)

        def add(count):
            for first in range(0, count, 5000):
                table.upsert(np.arange(first, first + 5000), np.ones((5000, 16), np.float32))

        add(5000)
    """
    text = textwrap.dedent(begin) + textwrap.dedent(program)
    return run_python(text, cwd=tmp_path)


PROGRAMS = {
    "a function of atexit writes more than fits in memory and closes it": (
        "atexit.register(lambda: (add(100_000), store.close()))",
        100_000,
    ),
    "a thread goes on after the main thread": (
        "threading.Thread(target=lambda: (threading.main_thread().join(), add(100_000), store.close())).start()",
        100_000,
    ),
    "a checkpoint is being written": ("add(100_000); store.checkpoint('saved', block=False)", 100_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", quick(PROGRAMS))
def test_a_store_can_be_used_until_the_program_has_ended(tmp_path, how) -> None:
    program, rows = PROGRAMS[how]
    found = ended(tmp_path, program)
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "")
    place = "saved" if "checkpoint" in how else "store"
    with kvemb.open(tmp_path / place, read_only=True) as store:
        keys, values = store.variables["table"].export()
    assert (len(keys), bool((values == 1).all())) == (rows, True)
    assert kvemb.verify(tmp_path / place, deep=True)


@pytest.mark.slow
def test_work_may_give_work_to_a_newer_pool_as_the_program_ends(tmp_path) -> None:
    """As a checkpoint does, to the threads that hash its files and to those that divide a large batch."""
    text = """
        import threading, time
        from kvemb.threads.pool import Threads

        older, newer = Threads(1), Threads(1)

        def work():
            threading.main_thread().join()
            time.sleep(0.5)  # the functions of atexit run
            print(newer.submit(int, "7").result())

        future = older.submit(work)
    """
    found = run_python(text, cwd=tmp_path, check=True)
    assert found.stdout == "7\n"


@pytest.mark.slow
def test_a_function_of_atexit_that_came_before_kvemb_is_too_late_and_told_so(tmp_path) -> None:
    text = """
        import atexit

        @atexit.register
        def late():
            try:
                store.close()
            except RuntimeError as error:
                print(error)

        import kvemb

        store = kvemb.open("store", memory_budget="8MiB")
        store.get_variable("table", dim=2).upsert([1], [[1.0, 2.0]])
    """
    found = run_python(text, cwd=tmp_path, check=True)
    assert "have ended, at close() or as the program ends" in found.stdout
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        assert store.check(deep=True) is None
