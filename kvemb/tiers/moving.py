"""Rows that move between tiers on other threads, beside their caller's work, where hot tables are on GPUs.

A GPU's table moves rows on a stream of its own, so what another thread has it do runs beside the kernels of the caller,
who neither waits for it nor copies a row. Rows that a lookup found elsewhere rise when it has ended; those of a read
ahead when they have been read. Every move is made under the variable's lock, as in a call; a call that takes the lock
first makes the moves that are due.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from kvemb.rows.hashing import Keys
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables

# The threads belong to the store, so none of them waits for a variable that is in use for longer.
TURN_SECONDS = 0.05


class Moving:
    """The moves of one variable's rows on other threads. active: whether there are any.

    move: makes those that are due, and those of rows of keys, which are about to be used, if any are given.
    """

    def __init__(
        self, access: TableAccess, hot_tables: HotTables, threads: Executor, move: Callable[[Keys | None], None]
    ) -> None:
        self._access, self._hot_tables, self._threads, self._move = access, hot_tables, threads, move
        self.active = hot_tables.on_gpus

    def after_lookup(self, *, spent: bool) -> None:
        """A lookup has ended: let another thread make the moves that are due. spent: there may be. Takes no lock."""
        if spent or self._access.left_work or self._hot_tables.rising:
            with suppress(RuntimeError):  # the store is being closed
                self._threads.submit(self.make)

    def make(self, keys: Keys | None = None) -> None:
        """Make moves, on any thread. None if the variable is in use for long, or a snapshot has no room for copies.

        What fails has poisoned the store, whose rows can still be read.
        """
        with suppress(Exception), self._access.held_if_free(TURN_SECONDS) as held:
            if held and not self._access.state.gone and self._access.has_room:
                self._move(keys)
