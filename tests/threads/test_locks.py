"""Locks are free after an exception of another thread, wherever it came."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from quick import quick

from kvemb.threads.locks import Condition, Event, Future, HeldLock, Lock
from kvemb.threads.pool import Threads

ROUNDS = 50


class Raised(BaseException):
    """What another thread raises."""


def interrupted(call: Callable[[], object]) -> None:
    """Call a function again and again on a new thread, and raise an exception there at some instant."""
    begun = threading.Event()

    def work() -> None:
        with suppress(Raised):
            begun.set()
            while True:
                call()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    while thread.is_alive():  # Python drops one that comes in a destructor
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Raised))
        thread.join(0.05)


@pytest.fixture(autouse=True)
def _often_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def setting_an_event() -> tuple[Callable[[], object], Callable[[], object]]:
    event = Event()
    return event.set, event.set


def waiting_for_an_event() -> tuple[Callable[[], object], Callable[[], object]]:
    event = Event()
    return lambda: event.wait(0), event.set


def asking_a_future() -> tuple[Callable[[], object], Callable[[], object]]:
    future: Future[None] = Future()
    return future.done, lambda: future.set_result(None)


def waiting_for_a_future() -> tuple[Callable[[], object], Callable[[], object]]:
    future: Future[None] = Future()

    def wait() -> None:
        with suppress(TimeoutError):
            future.result(0)

    return wait, lambda: future.set_result(None)


def giving_work() -> tuple[Callable[[], object], Callable[[], object]]:
    pool = Threads(
        1, started=True
    )  # Python may give a new thread what is raised in its maker, which then waits forever
    return lambda: pool.submit(int), lambda: (pool.submit(int).result(), pool.shutdown())


def holding_a_lock() -> tuple[Callable[[], object], Callable[[], object]]:
    lock = Lock()

    def hold() -> None:
        with HeldLock(lock), HeldLock(lock):
            pass

    return hold, hold


CASES = [setting_an_event, waiting_for_an_event, asking_a_future, waiting_for_a_future, giving_work, holding_a_lock]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that came in a destructor
@pytest.mark.parametrize("case", quick(CASES, 3), ids=lambda case: case.__name__)
def test_no_lock_stays_taken(case):
    for _ in range(ROUNDS):
        call, afterwards = case()
        interrupted(call)
        other = threading.Thread(target=afterwards, daemon=True)
        other.start()
        other.join(timeout=60)
        assert not other.is_alive()


def test_a_condition_waits_and_is_notified():
    condition, told = Condition(), []

    def wait() -> None:
        with condition:
            while not told:
                condition.wait(1)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with condition:
        assert not condition.wait(0.01)
        told.append(True)
        condition.notify_all()
    for thread in threads:
        thread.join()
    with pytest.raises(RuntimeError, match="un-acquired"):
        condition.notify()


def test_an_event_and_a_future_do_what_those_of_python_do():
    event, future = Event(), Future[int]()
    assert not event.wait(0.01)
    for delayed in (event.set, lambda: future.set_result(4)):
        threading.Timer(0.01, delayed).start()
    assert event.wait(60)
    assert future.result(60) == 4
    with pytest.raises(TimeoutError):
        Future[int]().result(0.01)


def test_a_held_lock_is_reentrant_and_excludes_other_threads():
    lock, entered = Lock(), threading.Event()

    def enter() -> None:
        with HeldLock(lock):
            entered.set()

    with HeldLock(lock):
        with HeldLock(lock):
            pass
        other = threading.Thread(target=enter)
        other.start()
        time.sleep(0.01)
        assert not entered.is_set()
    other.join()
    assert entered.is_set()
