"""Work ahead of a caller, on other threads: cold rows of batches to come are read, and rows move up to their GPUs.

It changes no result: rows that change meanwhile are read again (kvemb.tiers.locate), and rows move under the variable's
lock, which guards everything that does not say otherwise. The threads belong to the store, so none of them waits for a
lock longer than TURN_SECONDS: a variable may be loaded in bulk for hours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

import numpy as np

from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.schema import Schema
from kvemb.tiers.access import TableAccess
from kvemb.tiers.budget import Lease
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.locate import Locator

# Reads ahead that are kept, and as many that wait: for the call under way and for the call after it.
READS_AHEAD = 2
TURN_SECONDS = 0.05
# Between a lookup and the read that waited for it: the caller still hands the rows on, and needs the GIL.
PAUSE_SECONDS = 0.001


class Moving:
    """The moves of one variable's rows on other threads. active: there are some, as all hot tables are on GPUs.

    A GPU's table moves rows on a stream of its own, so what another thread has it do runs beside the kernels of the
    caller, who neither waits for it nor copies a row. Rows that a lookup found elsewhere rise when it has ended, and
    those of a read ahead when they have been read; a call that takes the lock first makes the moves that are due.
    move: makes these, and those of rows of keys, which are about to be used, if any are given.
    """

    def __init__(
        self, access: TableAccess, hot_tables: HotTables, threads: Executor, move: Callable[[Keys | None], None]
    ) -> None:
        self._access, self._hot_tables, self._threads, self._move = access, hot_tables, threads, move
        self.active, self._scheduled = hot_tables.on_gpus, False

    def after_lookup(self, *, spent: bool) -> None:
        """A lookup has ended: let another thread make the moves that are due. spent: some may be. Takes no lock."""
        if not self._scheduled and (spent or self._access.left_work or self._hot_tables.rising):
            self._scheduled = True
            with suppress(RuntimeError):  # the store is being closed
                self._threads.submit(self._make_scheduled)

    def _make_scheduled(self) -> None:
        self._scheduled = False
        self.make()

    def make(self, keys: Keys | None = None) -> None:
        """Make moves, on any thread. None if the variable is in use for long, or a snapshot has no room for copies.

        What fails has poisoned the store, whose rows can still be read.
        """
        with suppress(Exception), self._access.held_if_free(TURN_SECONDS) as held:
            if held and not self._access.state.gone and self._access.has_room:
                self._move(keys)


class ReadsAhead:
    """The reads ahead of one variable.

    readers: the threads. lease: pays for their memory. max_rows: rows that one read may bring. moving: makes hot what
    was read, on the same threads.
    """

    def __init__(
        self,
        schema: Schema,
        locator: Locator,
        access: TableAccess,
        readers: Executor,
        lease: Lease,
        max_rows: int,
        moving: Moving,
    ) -> None:
        self._locator, self._access, self._readers, self._moving = locator, access, readers, moving
        self._lease, self._max_rows = lease, max_rows
        self._row_bytes = RowBlock.bytes_per_row(schema)
        self._kept = locator.ahead
        self._waiting: deque[Callable[[], Keys]] = deque(maxlen=READS_AHEAD)
        self._queued: deque[Callable[[], Keys]] = deque(maxlen=READS_AHEAD)
        self._compared: deque[tuple[Keys, Unique]] = deque(maxlen=READS_AHEAD)

    def start(self, keys: Keys) -> None:
        """Start to read the cold ones of distinct keys, unless as many reads are under way already."""
        fetch = self._begin(keys)
        if fetch is not None:
            self._readers.submit(self._read, fetch)

    def start_beside(self, given: Callable[[], Keys]) -> None:
        """Do what start does on another thread, which calls given() for the keys: any, hot ones too. Takes no lock.

        Of more than READS_AHEAD that wait for a thread the oldest are forgotten.
        """
        self._queued.append(given)
        with suppress(RuntimeError):  # the store is being closed
            self._readers.submit(self._start_queued)

    def start_later(self, given: Callable[[], Keys]) -> None:
        """Do what start_beside does when a lookup ends. Takes no lock.

        Of more than READS_AHEAD the oldest are forgotten: the batches that they were for came without a lookup.
        """
        self._waiting.append(given)

    def distinct(self, keys: Keys) -> Unique:
        """Return Unique(keys), which the thread that read ahead may have made already. Takes no lock."""
        for batch, found in list(self._compared):
            if np.array_equal(batch, keys):
                return found
        return Unique(keys)

    @property
    def waits(self) -> bool:
        """Whether a read waits for a lookup to end."""
        return bool(self._waiting)

    def looked_up(self) -> None:
        """A lookup has ended: start what waited for it, and forget reads of which it took the last rows.

        Takes the lock itself, if there is anything to forget and no other thread that will do it.
        """
        if self._waiting:
            with suppress(IndexError, RuntimeError):  # another thread took it; the store is being closed
                self._readers.submit(self._start_late, self._waiting.popleft(), time.monotonic() + PAUSE_SECONDS)
        elif self._moving.active:
            self._moving.after_lookup(spent=bool(self._kept))
        elif self._kept:
            with self._access.held():
                self.forget_spent()

    def pay(self) -> None:
        """Forget reads that have ended while the lease owes memory."""
        for fetch in [fetch for fetch in self._kept if not fetch.reading]:
            if self._lease.owed:
                self._forget(fetch)

    def _begin(self, keys: Keys) -> Fetch | None:
        """Return the read that is to be made of distinct keys, which is known from here on; None: none is."""
        if sum(fetch.reading for fetch in self._kept) >= READS_AHEAD:
            return None
        wanted = self._locator.unknown(keys)[: self._max_rows]
        if len(self._kept) >= READS_AHEAD:
            self._forget(next(fetch for fetch in self._kept if not fetch.reading))
        if not len(wanted) or not self._lease.take(len(wanted) * self._row_bytes):
            return None
        fetch = Fetch(wanted)
        self._kept.append(fetch)
        return fetch

    def _forget(self, fetch: Fetch) -> None:
        """Forget a read that has ended. One under way has memory, and the cold store must outlast it."""
        self._kept.remove(fetch)
        self._lease.give_back(len(fetch.keys) * self._row_bytes)

    def forget_spent(self) -> None:
        """Forget reads of which nothing is left that was not taken."""
        for fetch in [fetch for fetch in self._kept if fetch.spent]:
            self._forget(fetch)

    # On the readers' threads. What fails here, the call that needs these rows does itself, and can raise the error.

    def _start_queued(self) -> None:
        with suppress(IndexError):  # it was forgotten
            self._start(Unique(self._queued.popleft()()).keys)

    def _start_late(self, given: Callable[[], Keys], when: float) -> None:
        time.sleep(max(0.0, when - time.monotonic()))
        keys = given()
        found = Unique(keys)
        self._compared.append((keys, found))
        self._start(found.keys)

    def _start(self, keys: Keys) -> None:
        fetch = None
        with suppress(Exception):
            with self._access.held_if_free(TURN_SECONDS) as held:
                if held and not self._access.state.gone:
                    self.forget_spent()
                    fetch = self._begin(keys)
            if fetch is not None:
                self._read(fetch)
        if self._moving.active:
            self._moving.make(keys)

    def _read(self, fetch: Fetch) -> None:
        try:
            self._locator.read(fetch)
        except Exception:
            fetch.invalidate()
