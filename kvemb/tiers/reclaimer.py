"""Giving memory back when another variable needs it: hot cells, slots of the spill buffer, reads ahead.

The next call on the variable does it. If there is none, a background thread does it, if the lock is free: the writer
waits for no variable's lock, and the others not for long (TURN_SECONDS).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from kvemb.errors import Poisoned
from kvemb.memory.lease import Lease
from kvemb.rows.block import RowBlock
from kvemb.tiers.access import TableAccess
from kvemb.tiers.ahead import ReadsAhead
from kvemb.tiers.background_mover import TURN_SECONDS
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.spill import SpillBuffer


class Reclaimer:
    """Gives back one variable's memory that others need.

    writer: the thread that writes spills, and gives back what the lease owes. others: threads that give back cells, and
    what the writer could not give back; they may wait for the writer. leave: called with dirty rows that were evicted.
    """

    def __init__(
        self,
        access: TableAccess,
        hot_tables: HotTables,
        spill: SpillBuffer,
        ahead: ReadsAhead,
        lease: Lease,
        writer: Executor,
        others: Executor,
        leave: Callable[[RowBlock], None],
    ) -> None:
        self._access, self._hot_tables, self._spill, self._ahead = access, hot_tables, spill, ahead
        self._lease, self._writer, self._others, self._leave = lease, writer, others, leave
        self._returning = self._reclaiming = False
        lease.notify = lease.reads.notify = self._return_leased_soon
        hot_tables.memory.wake_with(self._reclaim_soon)

    def reclaim(self) -> None:
        """Measure the worth of the hot cells, and give back some of the cells that are owed. REQUIRES: held().

        A failure poisons the store.
        """
        if self._access.state.cause is None:
            with suppress(MemoryError):  # the worth stays as it was
                self._hot_tables.memory.measure()
            with suppress(Poisoned), self._access.poisoning():
                for leaving in self._hot_tables.shrink():
                    self._leave(leaving)

    def _reclaim_soon(self) -> None:
        """Let another thread call reclaim(), unless a call on the variable is in progress, which does it itself."""
        if not self._reclaiming:
            self._reclaiming = True
            with suppress(RuntimeError):  # the store is being closed
                self._others.submit(self._reclaim_if_free)

    def _reclaim_if_free(self) -> None:
        self._reclaiming = False
        with self._access.held_if_free(rows=False) as held:
            if held and not self._access.state.closed and self._access.has_room:
                self.reclaim()
                if self._hot_tables.memory.has_work and self._access.state.cause is None:
                    self._reclaim_soon()

    def _return_leased_soon(self) -> None:
        """Let the writer give back what the lease owes, or another thread if a call on the variable is in progress."""
        if not self._returning:
            self._returning = True
            with suppress(RuntimeError):
                self._writer.submit(self._return_leased)

    def _return_leased(self) -> None:
        # On the writer's thread. Rows in flight give their memory back when they land. Landing may wait for this
        # thread, so another one lands them.
        self._returning = False
        with self._access.held_if_free(rows=False) as held:
            if held:
                self._return_leased_now()
                if not self._in_flight_owe:
                    return
        with suppress(RuntimeError):
            self._others.submit(self._return_leased_elsewhere)

    @property
    def _in_flight_owe(self) -> bool:
        return self._lease.reads.owed > 0 and self._access.in_flight.left > 0

    def _return_leased_elsewhere(self) -> None:
        with self._access.held_if_free(TURN_SECONDS, rows=self._lease.reads.owed > 0) as held:
            if held:
                self._return_leased_now()

    def _return_leased_now(self) -> None:
        state = self._access.state
        if not state.closed and state.cause is None:
            self._ahead.give_back_owed()
            self._spill.poll()
            # Other memory that is owed, such as a snapshot's copies, is given back when its use ends.
            if self._lease.owed and self._spill.writing:
                self._return_leased_soon()
