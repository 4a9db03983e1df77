"""Reads ahead: cold rows of batches to come, read on other threads while the caller does something else.

They change no result: rows that change meanwhile are read again (kvemb.tiers.locate). Where hot tables are on GPUs, the
rows that were read become hot at once (kvemb.tiers.moving), and the caller's thread asks no GPU what is hot. The
variable's lock guards everything that does not say otherwise. The threads belong to the store, so none of them waits
for a lock longer than TURN_SECONDS: a variable may be loaded in bulk for hours.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Executor
from contextlib import suppress

import numpy as np

from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.schema import Schema
from kvemb.tiers.access import TableAccess
from kvemb.tiers.budget import Lease
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.locate import Locator
from kvemb.tiers.moving import TURN_SECONDS, Moving

# Reads ahead that are kept, and as many that wait: for the call under way and for the call after it.
READS_AHEAD = 2
# Between a lookup and the read that waited for it: the caller still hands the rows on, and needs the GIL.
PAUSE_SECONDS = 0.001


class ReadsAhead:
    """The reads ahead of one variable.

    readers: the threads. lease: pays for their memory. most_rows: rows that one read may bring. moving: makes hot what
    was read, on the same threads.
    """

    def __init__(
        self,
        schema: Schema,
        locator: Locator,
        access: TableAccess,
        readers: Executor,
        lease: Lease,
        most_rows: int,
        moving: Moving,
    ) -> None:
        self._locator, self._access, self._readers, self._moving = locator, access, readers, moving
        self._lease, self._most_rows = lease, most_rows
        self._row_bytes = RowBlock.bytes_per_row(schema)
        self._kept = locator.ahead
        self._waiting: deque[Keys] = deque(maxlen=READS_AHEAD)
        self._asked: deque[Keys] = deque(maxlen=READS_AHEAD)
        self._compared: deque[tuple[Keys, Unique]] = deque(maxlen=READS_AHEAD)

    def start(self, keys: Keys) -> None:
        """Start to read the cold ones of distinct keys, unless as many reads are under way already."""
        fetch = self._begin(keys)
        if fetch is not None:
            self._readers.submit(self._read, fetch)

    def start_beside(self, keys: Keys) -> None:
        """The same on another thread, which asks what is hot. Takes no lock. Of more than READS_AHEAD that wait for a
        thread the oldest are forgotten.
        """
        self._asked.append(keys)
        with suppress(RuntimeError):  # the store is being closed
            self._readers.submit(self._start_asked)

    def start_later(self, keys: Keys) -> None:
        """Start to read the cold ones of keys, of which this keeps a copy, when a lookup ends. Takes no lock.

        Of more than READS_AHEAD the oldest are forgotten: the batches that they were for came without a lookup.
        """
        self._waiting.append(keys.copy())

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
        wanted = self._locator.unknown(keys)[: self._most_rows]
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

    def _start_asked(self) -> None:
        with suppress(IndexError):  # it was forgotten
            self._start(self._asked.popleft())

    def _start_late(self, keys: Keys, when: float) -> None:
        time.sleep(max(0.0, when - time.monotonic()))
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
