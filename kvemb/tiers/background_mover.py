"""Moving rows between GPUs and the host on other threads, beside the caller's kernels.

It changes no result: rows move under the variable's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from kvemb.rows.hashing import Keys
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables

# How long a thread that is shared by the store's variables waits for the lock of one of them.
TURN_SECONDS = 0.05


class BackgroundMover:
    """Moves one variable's rows on other threads. active: whether it does so: only if all devices are GPUs.

    A GPU's table moves rows on its own stream, so moves made by another thread run beside the caller's kernels, and the
    caller neither waits for them nor copies rows. Rows that a lookup found elsewhere move up after that lookup; rows
    that are read ahead, once they are read. If another call takes the lock first, it makes the moves that are due.
    move(keys): makes them, and moves up the rows of keys, if given, which are about to be used.
    """

    def __init__(
        self, access: TableAccess, hot_tables: HotTables, threads: Executor, move: Callable[[Keys | None], None]
    ) -> None:
        self._access, self._hot_tables, self._threads, self._move = access, hot_tables, threads, move
        self.active, self._scheduled = hot_tables.on_gpus, False

    def after_lookup(self, *, spent: bool) -> None:
        """After a lookup, let another thread make the moves that are due. spent: some may be due. Takes no lock."""
        if not self._scheduled and (spent or self._access.in_flight.left or self._hot_tables.has_uses):
            self._scheduled = True
            with suppress(RuntimeError):  # the store is being closed
                self._threads.submit(self._move_scheduled)

    def _move_scheduled(self) -> None:
        self._scheduled = False
        self.move()

    def move(self, keys: Keys | None = None) -> None:
        """Make moves, on any thread. Does nothing if the variable stays locked or a snapshot has no room for copies.

        A failure has poisoned the store, whose rows can still be read.
        """
        with suppress(Exception), self._access.held_if_free(TURN_SECONDS) as held:
            if held and not self._access.state.gone and self._access.has_room:
                self._move(keys)
