"""Who may work on a variable's rows, and when: the variable's lock, the state of its store, the room of a snapshot.

One lock a variable. The thread that has entered held() works alone on its rows until the block ends or it enters
given_up(). The blocks that every call enters are classes: a generator would take as long as the call of one key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from kvemb.errors import ColdStoreError
from kvemb.interrupts import TURN_SECONDS, Deferral, uninterrupted, wait_for
from kvemb.stats import Timed
from kvemb.store_state import StoreState


class TableAccess:
    """The lock of one variable, and what has to be asked before it is taken. Thread-safe.

    state: of the store; a failure while rows move poisons it. turns: how often the lock was taken.
    """

    def __init__(self, state: StoreState) -> None:
        self.state = state
        self.turns = 0
        self._lock = threading.Lock()
        self._left: Callable[[], None] | None = None
        self._room = threading.Event()
        self._room.set()
        self._no_snapshot = threading.Event()
        self._no_snapshot.set()

    def held(self, *, rows: bool = True) -> Held:
        """Keep all other calls of this variable out while the block runs.

        rows: False if the block concerns no rows; then work that was left to the next holder (leave_to_next) is not
        done. Ctrl-C waits for the end of the block.
        Raises Closed where the process was forked.
        """
        return Held(self, rows)

    @contextmanager
    def held_without_snapshot(self, *, interruptible: bool = False) -> Iterator[None]:
        """Like held(), after waiting for a snapshot that is being written. interruptible: Ctrl-C ends the wait."""
        while True:
            self.state.check_here()
            wait_for(self._no_snapshot)
            with self._held_interruptibly() if interruptible else self.held():
                if self._no_snapshot.is_set():
                    yield
                    return

    @contextmanager
    def held_if_free(self, seconds: float = 0, *, unless_left: bool = False) -> Iterator[bool]:
        """Like held(), but waits at most so many seconds; yields whether it is held. For a thread that others wait for.

        unless_left: if work was left to the next holder, the lock is not taken.
        """
        if not self.take(seconds, unless_left=unless_left):
            yield False
            return
        try:
            yield True
        finally:
            self.leave()

    @contextmanager
    def _held_interruptibly(self) -> Iterator[None]:
        with self._lock:
            self.turns += 1
            with uninterrupted():
                self._finish()
            yield

    def take(self, seconds: float = -1, *, unless_left: bool = False, rows: bool = True) -> bool:
        """Take the lock within so many seconds (-1: whenever it is free); returns whether it was: held_if_free()."""
        if not self._lock.acquire(timeout=seconds):
            return False
        if self._left is not None and rows:
            if unless_left:
                self._lock.release()
                return False
            self._finish()
        self.turns += 1
        return True

    def leave_to_next(self, work: Callable[[], None]) -> None:
        """Have whoever takes the lock next do this first. It must not raise. REQUIRES: held()."""
        self._left = work

    @property
    def left_work(self) -> bool:
        """Whether whoever takes the lock next has something to do first."""
        return self._left is not None

    def _finish(self) -> None:
        work, self._left = self._left, None
        if work is not None:
            work()

    def leave(self) -> None:
        """Release the lock. See held()."""
        self._lock.release()

    def given_up(self) -> GivenUp:
        """Let others in while the block runs. REQUIRES: held()."""
        return GivenUp(self)

    def poisoning(self) -> Poisoning:
        """Poison the store if the block fails. A failed write raises Poisoned here, too; other errors are raised as
        they are.

        Every statement that moves or changes rows is in such a block, because a row may be half-way between two tiers.
        """
        return Poisoning(self.state)

    # What a snapshot under way allows.

    def wait_for_room(self) -> None:
        """Wait until a snapshot under way has room for copies of the rows that change. Not under the lock."""
        self.state.check_here()
        wait_for(self._room)

    @property
    def has_room(self) -> bool:
        """Whether wait_for_room() would not wait."""
        return self._room.is_set()

    def set_room(self, free: bool) -> None:
        """Say whether there is room. REQUIRES: held()."""
        if free:
            self._room.set()
        else:
            self._room.clear()

    def set_snapshot(self, under_way: bool) -> None:
        """Say whether a snapshot is under way. REQUIRES: held()."""
        if under_way:
            self._no_snapshot.clear()
        else:
            self._no_snapshot.set()
            self._room.set()


class Held(Deferral):
    """The block of TableAccess.held()."""

    __slots__ = ("_access", "_rows")

    def __init__(self, access: TableAccess, rows: bool = True) -> None:
        self._access, self._rows = access, rows

    def __enter__(self) -> None:
        self._access.state.check_here()
        # Deferred first: Ctrl-C between taking the lock and deferring would leave it taken.
        super().__enter__()
        while not self._access.take(TURN_SECONDS, rows=self._rows):
            super().__exit__()
            super().__enter__()

    def __exit__(self, *failure: object) -> None:
        self._access.leave()
        super().__exit__()


class Entry(Held):
    """A held() block for one call on the rows. timed: counts the seconds it is held.

    begin: what to do first, under the lock; where it raises, the lock is released.
    """

    __slots__ = ("_begin", "_timed")

    def __init__(self, access: TableAccess, begin: Callable[[], None], timed: Timed) -> None:
        super().__init__(access)
        self._begin, self._timed = begin, timed

    def __enter__(self) -> None:
        super().__enter__()
        self._timed.__enter__()
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *failure: object) -> None:
        self._timed.__exit__()
        super().__exit__()


class GivenUp:
    """The block of TableAccess.given_up(). alone: after it, whether nobody else had the lock meanwhile."""

    __slots__ = ("_access", "_turns", "alone")

    def __init__(self, access: TableAccess) -> None:
        self._access = access

    def __enter__(self) -> Self:
        self._turns = self._access.turns
        self._access.leave()
        return self

    def __exit__(self, *failure: object) -> None:
        self._access.take()
        self.alone = self._access.turns == self._turns + 1


class Poisoning:
    """The block of TableAccess.poisoning()."""

    __slots__ = ("_state",)

    def __init__(self, state: StoreState) -> None:
        self._state = state

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self._state.poison(error)
            if isinstance(error, ColdStoreError):
                self._state.check_writable()
