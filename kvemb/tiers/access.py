"""Access to a variable's rows: the variable's lock, the store's state, and the room that a snapshot has for copies.

There is one lock per variable. A thread inside held() works alone on the rows until the block ends or it enters
released(). The blocks that every call enters are classes, because a generator would cost as much as a call on one key.

Signal handlers are deferred while a thread has the lock (kvemb.threads.interrupts). An exception that another thread
raises here (PyThreadState_SetAsyncExc) cannot be deferred: where it comes while rows move, or leaves the lock taken, it
poisons the store.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from kvemb.stats import Stats
from kvemb.store_state import Poisoning, StoreState
from kvemb.threads.interrupts import TURN_SECONDS, uninterrupted, wait_for
from kvemb.threads.locks import Event, Lock
from kvemb.tiers.in_flight import RowsInFlight


class TableAccess:
    """The lock of one variable, and the conditions for taking it. Thread-safe.

    state: the store's; a failure while rows move poisons it. in_flight: lands before the block of each holder of the
    lock, unless the holder says otherwise.
    """

    def __init__(self, state: StoreState, in_flight: RowsInFlight) -> None:
        self.state, self.in_flight = state, in_flight
        # Reentrant, because such a lock knows its thread; no thread takes it twice.
        self._lock, self._owner, self._handlers_run = Lock(), 0, False
        self.moving = 0  # how many blocks of poisoning() the thread with the lock is in
        self._room = Event()
        self._room.set()
        self._no_snapshot = Event()
        self._no_snapshot.set()

    def held(self, *, land: bool = True) -> Held:
        """Hold the variable's lock during the block; no other call on the variable runs meanwhile.

        land: False if rows in flight stay so, because the block uses no rows or finds them there. Signal handlers wait
        for the end of the block. Raises Closed in a forked process.
        """
        return Held(self, land)

    @contextmanager
    def held_without_snapshot(self, *, interruptible: bool = False) -> Iterator[None]:
        """Like held(), but waits for a snapshot in progress first. interruptible: handlers run in the block, and may
        not use the variable."""
        while True:
            self.state.check_here()
            wait_for(self._no_snapshot)
            with (held := self.held()):
                if self._no_snapshot.is_set():
                    self._handlers_run = interruptible
                    try:
                        with held.interruptible() if interruptible else nullcontext():
                            yield
                    finally:
                        self._handlers_run = False
                    return

    @contextmanager
    def held_if_free(self, seconds: float = 0, *, land: bool = True) -> Iterator[bool]:
        """Like held(), but waits at most `seconds`; yields whether the lock is held. For threads that others wait for.

        land: see held.
        """
        if not self.take(seconds, land=land):
            yield False
            return
        try:
            yield True
        finally:
            self.leave()

    def take(self, seconds: float, *, land: bool = True) -> bool:
        """Take the lock within `seconds`; return whether it was taken. See held_if_free and held."""
        if self._lock.is_mine:
            if self._handlers_run:
                raise RuntimeError("a signal handler must not use a variable while a load into it runs")
            self._poison_left()
            self.leave()
        if not self._lock.acquire(timeout=seconds):
            return False
        self._owner = threading.get_ident()
        if self.moving:
            self._poison_left()
        if land and self.in_flight.left:
            self.in_flight.land()
        return True

    def leave(self) -> None:
        """Release the lock. See held()."""
        if self._lock.is_mine:
            self._owner = 0
            self._lock.release()
        else:  # an exception came before released() took it again
            self._poison_left()

    def _poison_left(self) -> None:
        self.moving = 0
        self.state.poison(RuntimeError("an exception from another thread interrupted a call while it had the lock"))

    def take_from_dead_thread(self) -> None:
        """If the thread that has the lock has ended, poison the store, and make another lock."""
        lock, owner = self._lock, self._owner
        if owner and owner not in sys._current_frames() and (lock, owner) == (self._lock, self._owner):
            self._poison_left()
            self._lock = Lock()

    def released(self) -> Released:
        """Release the lock during the block, so that other calls can run. REQUIRES: held()."""
        return Released(self)

    def poisoning(self) -> Moving:
        """A block that poisons the store if it fails (kvemb.store_state). REQUIRES: held().

        Every statement that moves rows, or changes more of them than their scores, is in such a block, because after a
        failure a row may be half-way between two tiers. What belongs together is in one block: between two, nothing
        would poison the store.
        """
        return Moving(self)

    # The state of a snapshot.

    def wait_for_room(self) -> None:
        """Wait until the snapshot in progress, if any, has room for copies of rows that change. Not under the lock."""
        if not self._room.is_set():
            self.state.check_here()
            wait_for(self._room)

    @property
    def has_room(self) -> bool:
        """Whether wait_for_room() would return at once."""
        return self._room.is_set()

    def set_room(self, free: bool) -> None:
        """Set whether there is room for copies. REQUIRES: held()."""
        if free:
            self._room.set()
        else:
            self._room.clear()

    def set_snapshot(self, under_way: bool) -> None:
        """Set whether a snapshot is in progress. REQUIRES: held()."""
        if under_way:
            self._no_snapshot.clear()
        else:
            self._no_snapshot.set()
            self._room.set()


class Held(uninterrupted):
    """The block of TableAccess.held()."""

    __slots__ = ("_access", "_has", "_land")

    def __init__(self, access: TableAccess, land: bool = True) -> None:
        self._access, self._land, self._has = access, land, False

    def __enter__(self) -> None:
        self._access.state.check_here()
        # Defer handlers first: between taking the lock and deferring, one that raises would leave the lock taken.
        super().__enter__()
        while not self._access.take(TURN_SECONDS, land=self._land):
            self._access.take_from_dead_thread()
            with self.interruptible():
                pass
        self._has = True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let signal handlers run during a block within this one."""
        super().__exit__()
        try:
            yield
        finally:
            super().__enter__()

    def __exit__(self, *failure: object) -> None:
        if self._has:
            self._access.leave()
            self._has = False
        super().__exit__()


class HeldForCall(Held):
    """A held() block for one call on the rows. counts, field: where the seconds that the lock is held are counted.

    begin: called first, under the lock; if it raises, the lock is released. land: see TableAccess.held.
    """

    __slots__ = ("_began", "_begin", "_counts", "_field")

    def __init__(
        self, access: TableAccess, begin: Callable[[], None], counts: Stats, field: str, *, land: bool = True
    ) -> None:
        self._access, self._land, self._has = access, land, False
        self._begin, self._counts, self._field = begin, counts, field

    def __enter__(self) -> None:
        super().__enter__()
        self._began = time.perf_counter()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *failure: object) -> None:
        seconds = time.perf_counter() - self._began
        setattr(self._counts, self._field, getattr(self._counts, self._field) + seconds)
        super().__exit__()


class Released:
    """The block of TableAccess.released()."""

    __slots__ = ("_access",)

    def __init__(self, access: TableAccess) -> None:
        self._access = access

    def __enter__(self) -> None:
        self._access.leave()

    def __exit__(self, *failure: object) -> None:
        while not self._access.take(TURN_SECONDS, land=False):  # what others left in flight meanwhile is found there
            self._access.take_from_dead_thread()


class Moving(Poisoning):
    """The block of TableAccess.poisoning(). It marks the variable: if a second exception comes from another thread
    before the first one has poisoned the store, the next to take the lock does so."""

    __slots__ = ("_access",)

    def __init__(self, access: TableAccess) -> None:
        self._access, self._state, self.intact = access, access.state, False

    def __enter__(self) -> Moving:
        self._access.moving += 1
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._access.moving -= 1
        else:
            super().__exit__(kind, error, trace)

    def _end(self) -> None:
        self._access.moving -= 1
