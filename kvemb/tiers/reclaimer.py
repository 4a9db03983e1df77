"""Giving hot cells back when another variable needs their memory.

The next call on the variable does it. If there is none, a background thread does it, if the lock is free.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from kvemb.errors import Poisoned
from kvemb.rows.block import RowBlock
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables


class Reclaimer:
    """Shrinks the hot tables of one variable when other variables need the memory of their cells.

    threads: do it when no call does. They may have to wait for the thread that writes memtables, because the rows of
    such cells need room there, so that thread is none of them. spill: called with the dirty rows of such cells.
    """

    def __init__(
        self,
        access: TableAccess,
        hot_tables: HotTables,
        threads: Executor,
        spill: Callable[[list[RowBlock]], None],
    ) -> None:
        self._access, self._hot_tables, self._threads, self._spill = access, hot_tables, threads, spill
        self._reclaiming = False
        hot_tables.memory.wake_with(self._reclaim_soon)

    def reclaim(self) -> None:
        """Measure the benefit of the hot cells, and make the moves that are due. REQUIRES: held().

        A failure poisons the store.
        """
        if self._access.state.cause is None:
            with suppress(MemoryError):  # the benefit stays as it was
                self._hot_tables.memory.measure()
            with suppress(Poisoned), self._access.poisoning():
                for leaving in self._hot_tables.make_due_moves():
                    self._spill([leaving])

    def _reclaim_soon(self) -> None:
        """Let another thread call reclaim(), unless a call on the variable is in progress, which does it itself."""
        if not self._reclaiming:
            self._reclaiming = True
            with suppress(RuntimeError):  # the store is being closed
                self._threads.submit(self._reclaim_if_free)

    def _reclaim_if_free(self) -> None:
        self._reclaiming = False
        with self._access.held_if_free(land=False) as held:
            if held and not self._access.state.closed and self._access.has_room:
                self.reclaim()
                if self._hot_tables.memory.has_work and self._access.state.cause is None:
                    self._reclaim_soon()
