"""Locks that an exception of another thread (PyThreadState_SetAsyncExc), as timeout libraries raise, leaves free.

Python raises it between two instructions, also in the Python code in which threading's own conditions, events,
semaphores and futures enter and leave a block: their lock then stays taken for good. `with` on a lock written in C has
no such place.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from concurrent import futures
from typing import Any, TypeVar

from kvemb.threads.interrupts import TURN_SECONDS, uninterrupted

Result = TypeVar("Result")


class Lock(_thread.RLock):  # type: ignore[misc]
    """A reentrant lock that says whether this thread has it."""

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return bool(self._is_owned())  # type: ignore[attr-defined,unused-ignore]


class Condition(Lock, threading.Condition):  # type: ignore[misc]
    """A condition that is its own lock: `with` calls the lock's methods, which are in C."""

    def __init__(self) -> None:
        self._waiters: deque[Any] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Do what threading.Condition.wait does. The lock is held afterwards, whatever is raised."""
        try:
            return super().wait(timeout)
        except BaseException:
            if not self.is_mine:
                self.acquire()
            raise


class Event(threading.Event):
    """An event whose lock is never left taken."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()


class Future(futures.Future[Result]):
    """A future whose lock is never left taken. concurrent.futures.wait() has such a place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()


class HeldLock(uninterrupted):
    """A block with a reentrant lock. Signal handlers are deferred while the main thread has it, not while it waits."""

    __slots__ = ("_lock", "_taken")

    def __init__(self, lock: Lock) -> None:
        self._lock, self._taken = lock, False

    def __enter__(self) -> None:
        super().__enter__()
        # Only the outermost block takes it. So what a thread has is this block's, wherever it was interrupted.
        if not self._lock.is_mine:
            self._taken = True
            while not self._lock.acquire(timeout=TURN_SECONDS):
                super().__exit__()
                super().__enter__()

    def __exit__(self, *failure: object) -> None:
        self._leave()
        super().__exit__()

    def __del__(self) -> None:
        self._leave()
        super().__del__()

    def _leave(self) -> None:
        if self._taken and self._lock.is_mine:
            self._lock.release()
        self._taken = False
