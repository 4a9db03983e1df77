"""Locating rows by key: in the hot tables, in flight, in the spill buffer, or in the cold store.

The variable's lock guards everything here; locate() releases it during cold reads, and then looks again.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from kvemb.contracts import ColdStore, Mask
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.hashing import Keys, Positions
from kvemb.stats import Stats
from kvemb.tiers.access import TableAccess
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.located import Located
from kvemb.tiers.spill import SpillBuffer

_NONE: Mask = np.empty(0, np.bool_)


class Locator:
    """Locates rows of one variable. ahead: reads ahead, finished or in progress (kvemb.tiers.ahead)."""

    def __init__(
        self,
        hot_tables: HotTables,
        spill: SpillBuffer,
        in_flight: RowsInFlight,
        cold: ColdStore,
        access: TableAccess,
        stats: Stats,
    ) -> None:
        self._hot_tables, self._spill, self._in_flight, self._cold = hot_tables, spill, in_flight, cold
        self._access, self._stats, self._counting = access, stats, threading.Lock()
        self._schema = hot_tables.tables[0].schema
        self._no_rows = RowBlock(self._schema, 0)
        self._reads: list[Fetch] = []
        self.ahead: list[Fetch] = []

    def locate(self, keys: Keys) -> Located:
        """Locate the rows of distinct keys. REQUIRES: access.held().

        The lock is released during cold reads, and held again on return.
        """
        own: list[Fetch] = []
        try:
            found = self._look(keys)
            while len(found.cold):
                unknown, awaited = self._take_fetched(found, own)
                if awaited is not None:
                    with self._access.released() as released:
                        self.read(awaited)  # it may be waiting for a thread
                        awaited.wait()
                    alone = released.alone
                elif len(unknown) == 0:
                    return found
                elif self._read_unknown(found, unknown, own):
                    self._access.state.check_open()
                    return found
                else:
                    alone = False
                self._access.state.check_open()
                if not alone:  # rows may have moved or changed
                    found = self._look(keys)
            return found
        finally:
            for fetch in own:
                self._reads.remove(fetch)

    def _read_unknown(self, found: Located, unknown: Positions, own: list[Fetch]) -> bool:
        """Read the unknown rows. Return True if no other call had the lock meanwhile, so that they are now known.

        The first read releases the lock, so other calls may change these rows; the second read keeps it.
        """
        unknown = self._ascending(found.rows.keys, unknown)
        fetch = Fetch(found.rows.keys[unknown])
        own.append(fetch)
        self._reads.append(fetch)
        if len(own) == 1:
            with self._access.released() as released:
                self.read(fetch)
            if not released.alone:
                return False
        else:
            self.read(fetch)
        found.rows, found.exists[unknown] = fetch.fill(found.rows, unknown)
        found.known[unknown] = True
        return True

    def _look(self, keys: Keys) -> Located:
        """Look in the hot tier, in the spill buffer and among rows in flight; rows that are elsewhere stay unknown."""
        owners = self._hot_tables.owners(keys)
        cells = self._hot_tables.find(keys, owners)
        cold = (cells < 0).nonzero()[0]
        if len(cold) == 0:
            return Located(keys, owners, cells, cold, self._no_rows, _NONE, _NONE)
        rows = RowBlock(self._schema, len(cold))
        rows.keys[:] = keys[cold]
        known, exists = self._spill.read(rows.keys, rows)
        self._in_flight.read(rows, known, exists)  # newer than those that wait to be spilled
        return Located(keys, owners, cells, cold, rows, exists, known)

    def _take_fetched(self, found: Located, own: list[Fetch]) -> tuple[Positions, Fetch | None]:
        """Copy rows from finished reads. Return the positions still unknown, and a read to wait for, or None."""
        unknown = (~found.known).nonzero()[0]
        for fetch in (*own, *self.ahead):
            if len(unknown) == 0:
                break
            reading = fetch.reading
            positions = fetch.covers(found.rows.keys[unknown])
            covered = positions >= 0
            if not covered.any():
                continue
            if reading:
                return unknown, fetch
            found.exists[unknown[covered]] = fetch.copy(positions[covered], found.rows, unknown[covered])
            found.known[unknown[covered]] = True
            unknown = unknown[~covered]
        return unknown, None

    def without_reading(self, keys: Keys) -> Located:
        """Locate the rows of distinct keys; those not in memory stay unknown. REQUIRES: access.held(); keeps it."""
        found = self._look(keys)
        self._take_fetched(found, [])
        return found

    def in_memory(self, keys: Keys) -> Located:
        """Locate those of distinct keys whose rows exist and are in memory. REQUIRES: access.held(); keeps it."""
        found = self.without_reading(keys)
        return found.only(found.known & found.exists)

    def unknown(self, keys: Keys) -> Keys:
        """Return those of distinct keys that are not in memory, in the cold store's order. REQUIRES: access.held()."""
        found = self._look(keys)
        return found.rows.keys[self._ascending(found.rows.keys, (~found.known).nonzero()[0])]

    def forget(self, keys: Keys | None) -> None:
        """Invalidate what reads saw of these keys (None: of all), because their rows changed in the cold store."""
        for fetch in (*self._reads, *self.ahead):
            fetch.invalidate(keys)

    def wait_for_reads(self) -> None:
        """Wait for reads in progress. They need no lock to end."""
        for fetch in (*self._reads, *self.ahead):
            fetch.wait()

    def read_from(self, cold: ColdStore) -> None:
        """Read cold rows from another store from now on."""
        self._cold = cold
        self.forget(None)

    def _ascending(self, keys: Keys, positions: Positions) -> Positions:
        """Return these positions in keys, sorted by the order of their keys."""
        if len(positions) < 2:
            return positions
        return positions[np.argsort(order_keys(keys[positions], self._schema))]

    def read(self, fetch: Fetch) -> None:
        """Read the rows of fetch, unless another thread has begun to; without the variable's lock.

        Raises Corruption, ColdStoreError.
        """
        if not fetch.begin():
            return
        began = time.perf_counter()
        try:
            fetch.read(self._cold)
        finally:
            with self._counting:
                self._stats.seconds_cold_read += time.perf_counter() - began
                self._stats.cold_reads += fetch.rows
