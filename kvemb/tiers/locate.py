"""Locating rows by key: in the hot tables, in staging (in flight, in memtables, read ahead), or in the cold store.

A search has three parts. begin() looks in memory. read_together() reads what is not there, of any number of variables
in one job, without a lock. end() looks in memory again if the variable's version says that rows have moved: a row that
is still not there is the one that was read, unless forget() has told meanwhile that it changed on the disk. Such rows
are read again, with the lock, so a search ends.

The variable's lock guards everything here but the reads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from weakref import WeakSet

import numpy as np

from kvemb.contracts import ColdStore, Mask
from kvemb.memory.memtables import Memtables
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.stats import Stats
from kvemb.threads.disk_waits import ReadThreads
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.parallel import run_each
from kvemb.tiers.access import TableAccess
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.located import Located

_NONE: Mask = np.empty(0, np.bool_)
# Of the process, because its threads, its cores and the page cache are.
_read_threads = ReadThreads()


class Search:
    """The keys of one variable that are being located. found: what begin() found. reads: what it must wait for.

    own: the read of rows that nothing else reads. failure: of this read. version: the variable's, at begin().
    """

    def __init__(self, locator: Locator, found: Located, own: Fetch | None, under_way: list[Fetch]) -> None:
        self.locator, self.found, self.own = locator, found, own
        self.reads = under_way if own is None else [own, *under_way]
        self.version = locator.version
        self.failure: Exception | None = None

    @property
    def seconds(self) -> float:
        """How long its own read took."""
        return 0.0 if self.own is None else self.own.seconds

    def read(self, fetch: Fetch) -> None:
        """Read, unless another thread has begun to. Takes no lock."""
        try:
            self.locator.read(fetch)
        except Exception as error:
            if fetch is self.own:  # if a read ahead fails, end() reads its rows
                self.failure = error


def read_together(searches: Sequence[Search]) -> None:
    """Do all reads of some searches, in one job: on several threads, if that pays. REQUIRES: no lock is held.

    Raises nothing: end() does. Signal handlers are deferred, because others wait for these reads.
    """
    reads = [(search, fetch) for search in searches for fetch in search.reads]
    with uninterrupted():
        if len(reads) == 1:
            reads[0][0].read(reads[0][1])
        elif reads:
            keys, least = sum(len(fetch.keys) for _, fetch in reads), searches[0].locator.parallel_keys
            with _read_threads.reading(keys) as threads:
                works = [partial(search.read, fetch) for search, fetch in reads]
                run_each(works, threads if keys >= least else 1)
        for _, fetch in reads:
            if fetch.reading:
                fetch.wait()


class Locator:
    """Locates rows of one variable.

    parallel_keys: the fewest keys that several threads read. ahead: reads ahead, finished or in progress
    (kvemb.tiers.ahead).
    """

    def __init__(
        self,
        hot_tables: HotTables,
        memtables: Memtables,
        in_flight: RowsInFlight,
        cold: ColdStore,
        access: TableAccess,
        stats: Stats,
        parallel_keys: int = 512,
    ) -> None:
        self.parallel_keys = parallel_keys
        self._hot_tables, self._memtables, self._in_flight, self._cold = hot_tables, memtables, in_flight, cold
        self._access, self._stats, self._counting = access, stats, threading.Lock()
        self._schema = hot_tables.tables[0].schema
        self._no_rows = RowBlock(self._schema, 0)
        self._reads: WeakSet[Fetch] = WeakSet()  # those of searches
        self.ahead: list[Fetch] = []
        self._forgotten = 0

    @property
    def version(self) -> int:
        """A number that grows whenever a row moves, or changes in the cold store."""
        return self._hot_tables.moves + self._memtables.moves + self._in_flight.moves + self._forgotten

    def begin(self, keys: Keys, *, hot: bool = True) -> Search:
        """Look for distinct keys in memory. hot: whether any of them may be hot.

        If nothing is to be read, end() must follow before the lock is released.
        """
        found = self._look(keys, hot)
        if not len(found.rows):
            return Search(self, found, None, [])
        unknown = self._take(found, self.ahead)
        under_way: list[Fetch] = []
        for fetch in self.ahead:
            if fetch.reading and len(unknown):
                left = fetch.covers(found.rows.keys[unknown]) < 0
                if not left.all():
                    under_way.append(fetch)
                    unknown = unknown[left]
        own = None
        if len(unknown):
            rows = found.rows
            if len(unknown) < len(rows):
                rows = RowBlock.with_keys(self._schema, rows.keys[unknown])
            own = Fetch(rows)
            self._reads.add(own)
        return Search(self, found, own, under_way)

    def end(self, search: Search) -> Located:
        """Return where the rows are now. Raises Closed, Corruption, ColdStoreError."""
        found, own = search.found, search.own
        if not search.reads:
            return found
        search.own, search.reads = None, []  # their memory is free when this search has ended
        self._access.state.check_open()
        if search.failure is not None:
            raise search.failure
        if self.version != search.version:
            found = self._look(found.keys)  # into other rows: what was read may have changed
        elif own is not None and own.rows is found.rows and (exists := own.sound) is not None:
            found.exists = exists
            found.known.fill(True)
            return found
        unknown = self._take(found, self.ahead if own is None else [own, *self.ahead])
        if len(unknown):
            again = Fetch(RowBlock.with_keys(self._schema, found.rows.keys[unknown]))
            self.read(again)
            found.exists[unknown] = again.copy(np.arange(len(unknown)), found.rows, unknown)
            found.known[unknown] = True
        return found

    def _look(self, keys: Keys, hot: bool = True) -> Located:
        """Look in the hot tables, in memtables and among rows in flight; rows elsewhere stay unknown."""
        owners = self._hot_tables.owners(keys)
        if hot:
            cells = self._hot_tables.find(keys, owners)
            cold = (cells < 0).nonzero()[0]
        else:
            cells, cold = np.empty(len(keys), np.int64), np.arange(len(keys))
            cells.fill(-1)  # np.full takes longer than a small search
        if len(cold) == 0:
            return Located(keys, owners, cells, cold, self._no_rows, _NONE, _NONE)
        rows = RowBlock.with_keys(self._schema, keys[cold] if hot else keys)
        known, exists = np.zeros((2, len(rows)), np.bool_)
        self._in_flight.read(rows, known, exists)
        self._memtables.read(rows, known, exists)  # older than those in flight
        return Located(keys, owners, cells, cold, rows, exists, known)

    def _take(self, found: Located, reads: Sequence[Fetch]) -> Positions:
        """Copy rows from those reads that have ended. Return the positions that are still unknown."""
        unknown = (~found.known).nonzero()[0]
        for fetch in reads:
            if fetch.reading or not len(unknown):
                continue
            positions = fetch.covers(found.rows.keys[unknown])
            covered = positions >= 0
            if covered.any():
                here = unknown[covered]
                found.exists[here] = fetch.copy(positions[covered], found.rows, here)
                found.known[here] = True
                unknown = unknown[~covered]
        return unknown

    def in_memory(self, keys: Keys) -> Located:
        """Locate the rows of distinct keys; those not in memory stay unknown. REQUIRES: access.held(); keeps it."""
        found = self._look(keys)
        self._take(found, self.ahead)
        return found

    def unknown(self, keys: Keys) -> Keys:
        """Return those of distinct keys that are neither hot nor in flight nor in memtables."""
        cold = keys[self._hot_tables.find(keys, self._hot_tables.owners(keys)) < 0]
        return cold[~(self._in_flight.has(cold) | self._memtables.has(cold))]

    def forget(self, keys: Keys | None) -> None:
        """Invalidate what reads saw of these keys (None: of all), because their rows changed in the cold store."""
        self._forgotten += 1
        for fetch in (*self._reads, *self.ahead):
            fetch.invalidate(keys)

    def wait_for_reads(self) -> None:
        """Wait for reads in progress, which need no lock to end. Reads that have not begun never will."""
        for fetch in (*self._reads, *self.ahead):
            fetch.cancel()
            fetch.wait()

    def read_from(self, cold: ColdStore) -> None:
        """Read cold rows from another store from now on."""
        self._cold = cold
        self.forget(None)

    def read(self, fetch: Fetch) -> None:
        """Read the rows of fetch, unless another thread has begun to; without the variable's lock.

        Raises Corruption, ColdStoreError.
        """
        if not fetch.begin():
            return
        try:
            fetch.read(self._cold)
        finally:
            with self._counting:
                self._stats.seconds_cold_read += fetch.seconds
                self._stats.cold_reads += fetch.count
