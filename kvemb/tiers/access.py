"""Who may work on a variable's rows, and when: the variable's lock, the state of its store, the room of a snapshot.

One lock a variable. The thread that has entered held() works alone on its rows until the block ends or it enters
given_up().
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from kvemb.errors import ColdStoreError
from kvemb.interrupts import uninterrupted, wait_for
from kvemb.store_state import StoreState


class TableAccess:
    """The lock of one variable, and what has to be asked before it is taken. Thread-safe.

    state: of the store; a failure while rows move poisons it.
    """

    def __init__(self, state: StoreState) -> None:
        self.state = state
        self._lock = threading.Lock()
        self._room = threading.Event()
        self._room.set()
        self._no_snapshot = threading.Event()
        self._no_snapshot.set()

    @contextmanager
    def held(self, *, interruptible: bool = False) -> Iterator[None]:
        """Keep all other calls of this variable out while the block runs.

        Ctrl-C waits for its end, unless interruptible. Raises Closed where the process was forked.
        """
        self.state.check_here()
        with self._lock, nullcontext() if interruptible else uninterrupted():
            yield

    @contextmanager
    def held_without_snapshot(self, *, interruptible: bool = False) -> Iterator[None]:
        """The same, while no snapshot is being written: waits for the one under way."""
        while True:
            self.state.check_here()
            wait_for(self._no_snapshot)
            with self.held(interruptible=interruptible):
                if self._no_snapshot.is_set():
                    yield
                    return

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """The same without waiting: yields whether it is held. For a thread that must not wait."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let others in while the block runs. REQUIRES: held()."""
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()

    @contextmanager
    def poisoning(self) -> Iterator[None]:
        """Turn a failed write into Poisoned, for this call and all later ones; whatever else fails, for later ones.

        Every statement that moves or changes rows is in such a block, because a row may be half-way between two tiers.
        """
        try:
            yield
        except ColdStoreError as error:
            self.state.poison(error)
            self.state.check_writable()
        except Exception as error:
            self.state.poison(error)
            raise

    # What a snapshot under way allows.

    def wait_for_room(self) -> None:
        """Wait until a snapshot under way has room for copies of the rows that change. Not under the lock."""
        self.state.check_here()
        wait_for(self._room)

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
