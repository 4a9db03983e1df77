"""Running a few calls, such as work on several variables, on threads. Each call releases the GIL most of the time.

Thread-safe; the threads belong to the process. Calls may be nested: a call run here may use threads itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache

from kvemb.threads.interrupts import result_of, uninterrupted
from kvemb.threads.pool import Threads

# For work that waits for the disk: more threads than cores, so that reads overlap.
MAX_THREADS = 8


@cache
def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores() -> int:
    """Return how many cores a call on this thread may use, at least one: those on which no other thread works.

    A thread works while it runs works of run_each() or is ahead_of_caller(). The caller that this thread is ahead of
    works, too.
    """
    thread = threading.get_ident()
    others = len(_working) - (thread in _working) + (thread in _ahead)
    return max(1, cores() - others)


@contextmanager
def ahead_of_caller() -> Iterator[None]:
    """In this block, this thread does what a caller will need, while that caller itself computes."""
    thread = threading.get_ident()
    nested = thread in _working
    try:
        _working.add(thread)
        _ahead.add(thread)
        yield
    finally:
        _ahead.discard(thread)
        if not nested:
            _working.discard(thread)


def run_each(works: Sequence[Callable[[], object]], threads: int) -> list[Exception | None]:
    """Run all works, at most `threads` at a time, one on the caller's thread. Return each work's exception, or None.

    An exception does not stop the others. What a signal handler raises does: works that have not begun are skipped.
    """
    failures: list[Exception | None] = [None] * len(works)
    numbers = iter(range(len(works)))

    def run(numbers: Iterator[int]) -> None:
        thread = threading.get_ident()
        nested = thread in _working
        try:
            _working.add(thread)  # in this block, as a handler may raise at its end
            for number in numbers:  # each thread takes the next number; a list's iterator is atomic under the GIL
                try:
                    works[number]()
                except Exception as error:
                    failures[number] = error
        finally:
            if not nested:
                _working.discard(thread)

    helpers: list[Future[None]] = []
    if min(threads, len(works)) > 1:
        helpers = [_pool().submit(run, numbers) for _ in range(min(threads, len(works)) - 1)]
    try:
        run(numbers)
    finally:
        for _ in numbers:  # only after an exception of a signal handler
            pass
        for helper in helpers:
            with uninterrupted():
                cancelled = helper.cancel()
            if not cancelled:
                result_of(helper)
    return failures


@cache
def _pool() -> Threads:
    return Threads(MAX_THREADS, thread_name_prefix="kvemb-variables")


# The threads that work now, and those of them that are ahead of callers. Changes are atomic under the GIL.
_working: set[int] = set()
_ahead: set[int] = set()

if hasattr(os, "register_at_fork"):
    # These threads exist in the parent only.
    os.register_at_fork(after_in_child=_pool.cache_clear)
    os.register_at_fork(after_in_child=_working.clear)
    os.register_at_fork(after_in_child=_ahead.clear)
