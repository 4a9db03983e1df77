"""Pools of threads that work until the program's functions of atexit have run, such as one that closes a store.

Pools of concurrent.futures refuse work once the main thread has ended, although other threads of the user may still
run. Here a function of atexit, registered when kvemb is imported, waits for the work that all pools have, and then ends
them. Functions that are registered later run before it. Python no longer starts threads then: work for a pool that has
none is done by the thread that gives it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, wait
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.locks import Future
from kvemb.threads.native import end_native_code

Given = ParamSpec("Given")
Result = TypeVar("Result")
# The future, and the function to call; None: the pool has ended.
Work = tuple[Future[Any], Callable[[], Any]] | None


class Here(Executor):
    """Does work at once, on the thread that gives it."""

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Return a future that has fn's result or its Exception."""
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """A pool of at most `most` threads, which start as they are needed, as daemons. Thread-safe.

    A signal handler waits until the pool has taken it. started: start the first thread at once, so that no
    caller ever does its work: for work that is given under a lock which it takes itself. initializer: called by each
    thread as it starts.
    """

    def __init__(
        self,
        most: int,
        *,
        thread_name_prefix: str = "kvemb",
        initializer: Callable[[], object] | None = None,
        started: bool = False,
    ) -> None:
        self._most, self._name, self._initializer = most, thread_name_prefix, initializer
        self._queue: SimpleQueue[Work] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()  # an item for each thread that waits for work
        self._threads: list[threading.Thread] = []
        self._given: set[Future[Any]] = set()  # that is not done
        self._lock, self._ended = threading.Lock(), _program_ended
        # The threads do not refer to the pool: they end when nothing else does.
        weakref.finalize(self, self._queue.put, None).atexit = False
        _pools[next(_numbers)] = self
        if started:
            with uninterrupted(), self._lock:
                self._start()

    @property
    def unfinished(self) -> list[Future[Any]]:
        """The futures of work that was given and is not done."""
        return list(self._given)

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Return a future of fn's result. Raises RuntimeError after shutdown()."""
        future: Future[Result] = Future()
        with uninterrupted():
            with uninterrupted(), self._lock:
                if self._ended:
                    raise RuntimeError(f"the threads {self._name!r} have ended, at close() or as the program ends")
                if self._has_idle() or len(self._threads) == self._most or self._start() or self._threads:
                    self._queue.put((future, lambda: fn(*args, **kwargs)))
                    # Afterwards, as another thread's exception may come here: what is never done is waited for.
                    self._given.add(future)
                    future.add_done_callback(self._given.discard)
                    return future
            _do((future, lambda: fn(*args, **kwargs)))
        return future

    def _has_idle(self) -> bool:
        """Whether a thread waits for work; it is counted as one that does not, from now on."""
        try:
            self._idle.get_nowait()
        except Empty:
            return False
        return True

    def _start(self) -> bool:
        """Start one more thread; return whether it could be started. REQUIRES: the lock."""
        name = f"{self._name}_{len(self._threads)}"
        arguments = self._queue, self._idle, self._initializer
        thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the program ends, or the system has no more threads
            return False
        self._threads.append(thread)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads when they have done the work that was given. wait: for that. cancel_futures: skip it."""
        with uninterrupted(), self._lock:
            self._ended = True
            if cancel_futures:
                _cancel(self._queue)
            self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _work(queue: SimpleQueue[Work], idle: SimpleQueue[None], initializer: Callable[[], object] | None) -> None:
    if initializer is not None:
        initializer()
    while True:
        try:
            work = queue.get_nowait()
        except Empty:
            idle.put(None)
            work = queue.get()
        if work is None:
            queue.put(None)  # for the next thread
            return
        _do(work)
        del work  # a thread that waits keeps nothing alive


def _do(work: tuple[Future[Any], Callable[[], Any]]) -> None:
    future, call = work
    if future.set_running_or_notify_cancel():
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
            del future, work  # the error's traceback refers to this frame
        else:
            future.set_result(result)


def _cancel(queue: SimpleQueue[Work]) -> None:
    while True:
        try:
            work = queue.get_nowait()
        except Empty:
            return
        if work is not None:
            work[0].cancel()


_pools: weakref.WeakValueDictionary[int, Threads] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_program_ended = False


@atexit.register
def _end_all() -> None:
    """Wait for the work that all pools have, which may give work to any of them, and make others; then end them."""
    global _program_ended
    wait([future for pool in list(_pools.values()) for future in pool.unfinished])
    for _, pool in sorted(_pools.items(), reverse=True):
        pool.shutdown()
    _program_ended = True  # a pool that is made from now on has ended
    end_native_code()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # their threads exist in the parent only
