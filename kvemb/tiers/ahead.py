"""Reading the cold rows of later batches ahead of callers, on other threads.

It changes no result: rows that change meanwhile are read again (kvemb.tiers.locate). The variable's lock guards
everything here unless a docstring says otherwise. The threads are shared by the store's variables, so none waits for a
lock longer than LOCK_SECONDS: a variable may be locked for hours by a bulk load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext, suppress

import numpy as np

from kvemb.memory.staging import Holding
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.schema import Schema
from kvemb.threads.disk_waits import ReadThreads
from kvemb.threads.parallel import ahead_of_caller, cores
from kvemb.threads.pool import Threads
from kvemb.tiers.access import TableAccess
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.locate import Locator

# How long a thread that is shared by the store's variables waits for the lock of one of them.
LOCK_SECONDS = 0.05
# How many reads ahead are kept, and how many may wait: one for the present call, one for the next.
READS_AHEAD = 2
# Of the process, but others than of lookups: what is read ahead waits for the disk more often.
_read_threads = ReadThreads()


def reading_threads() -> Threads:
    """Return the threads of a store that read ahead: two, unless these and their caller would have to share cores."""
    return Threads(max(1, min(2, cores() - 1)), thread_name_prefix="kvemb-prefetch", started=True)


class ReadsAhead:
    """The reads ahead of one variable. memory: pays for them. max_rows: the most rows of one. readers: the threads."""

    def __init__(
        self,
        schema: Schema,
        locator: Locator,
        access: TableAccess,
        readers: Executor,
        memory: Holding,
        max_rows: int,
    ) -> None:
        self._locator, self._access, self._readers = locator, access, readers
        self._memory, self._max_rows = memory, max_rows
        self._schema, self._row_bytes = schema, RowBlock.bytes_per_row(schema)
        self._kept = locator.ahead
        self._waiting: deque[Callable[[], Keys]] = deque(maxlen=READS_AHEAD)
        self._compared: deque[tuple[Keys, Unique]] = deque(maxlen=READS_AHEAD)

    def start(self, given: Callable[[], Keys], *, after_lookup: bool) -> None:
        """Start to read the cold rows of keys on another thread, unless READS_AHEAD reads are in progress.

        given: returns the keys, on either thread, in any order, duplicates and hot keys allowed; may block.
        after_lookup: start when the next lookup ends; if more than READS_AHEAD wait for that, the oldest are dropped:
        their batches have passed without a lookup. Takes the lock, unless it is after_lookup. Raises Closed.
        """
        self._access.state.check_open()
        if after_lookup:
            self._waiting.append(given)
        else:
            distinct = Unique(given()).keys
            with self._access.held(land=False):
                self._access.state.check_open()
                if (fetch := self._begin(distinct)) is not None:
                    self._readers.submit(self._read, fetch)

    def distinct(self, keys: Keys) -> Unique:
        """Return Unique(keys), which a thread that read ahead may have computed already. Takes no lock."""
        for batch, found in list(self._compared):
            if np.array_equal(batch, keys):
                return found
        return Unique(keys)

    @property
    def follows_lookup(self) -> bool:
        """Whether another thread takes the lock when the lookup has ended: a read waits for that."""
        return bool(self._waiting)

    def lands(self, *, awaited: bool) -> bool:
        """Whether that thread lands what the lookup left in flight. awaited: an update is expected to take it."""
        return not awaited

    def looked_up(self) -> None:
        """Start the read that waited for the end of a lookup, and forget reads whose rows have all been taken.

        Called after every lookup. Takes the lock if there is something to forget and no other thread will do it.
        """
        if self._waiting:
            with suppress(IndexError, RuntimeError):  # another thread took it; the store is being closed
                self._readers.submit(self._start_late, self._waiting.popleft())
        elif self._kept:
            with self._access.held(land=False):
                if not self._access.state.gone:  # else the memory was given back
                    self.forget_spent()

    def _begin(self, keys: Keys) -> Fetch | None:
        """Return a new, registered read of those distinct keys that are not in memory, or None to read nothing."""
        if sum(fetch.reading for fetch in self._kept) >= READS_AHEAD:
            return None
        wanted = self._locator.unknown(keys)[: self._max_rows]
        if not len(wanted):
            return None
        if len(self._kept) == READS_AHEAD:
            self._forget(next(fetch for fetch in self._kept if not fetch.reading))
        fetch = Fetch(RowBlock.with_keys(self._schema, wanted))  # first, as it may fail
        if not self._memory.take(len(wanted) * self._row_bytes):
            return None
        self._kept.append(fetch)
        return fetch

    def _forget(self, fetch: Fetch) -> None:
        """Forget a finished read. A read in progress must be kept: it uses its memory and the cold store."""
        self._kept.remove(fetch)
        self._memory.give_back(len(fetch.keys) * self._row_bytes)

    def forget_spent(self) -> None:
        """Forget the reads that are spent (Fetch.spent)."""
        for fetch in [fetch for fetch in self._kept if fetch.spent]:
            self._forget(fetch)

    # On the readers' threads. After a failure here, the call that needs the rows reads them itself, and raises the
    # error.

    def _start_late(self, given: Callable[[], Keys]) -> None:
        keys = given()
        found = Unique(keys)
        self._compared.append((keys, found))
        self.read(found.keys)

    def read(self, keys: Keys) -> None:
        """Read the cold rows of distinct keys, on this thread."""
        fetch = None
        with suppress(Exception):
            land = self.lands(awaited=self._access.in_flight.awaited)
            with self._access.held_if_free(LOCK_SECONDS, land=land) as held:
                if held and not self._access.state.gone:
                    self.forget_spent()
                    fetch = self._begin(keys)
            if fetch is not None:
                self._read(fetch)

    def _read(self, fetch: Fetch) -> None:
        try:
            with (
                _read_threads.reading(len(fetch.keys)) as threads,
                # While reads wait for a disk, cores are free.
                nullcontext() if threads > cores() else ahead_of_caller(),
            ):
                self._locator.read(fetch)
        except Exception:
            fetch.cancel()  # if it has not begun
