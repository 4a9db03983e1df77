"""Moving rows between GPUs and the host on other threads, beside the caller's kernels.

A GPU's table moves rows on its own stream, so the caller neither waits for such moves nor copies rows. It changes no
result: rows move under the variable's lock. If another call takes the lock first, it makes the moves that are due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from kvemb.errors import Poisoned
from kvemb.rows.hashing import Keys, Unique
from kvemb.tiers.ahead import LOCK_SECONDS, READS_AHEAD, ReadsAhead
from kvemb.tiers.gpu_tables import GpuTables
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.storage import TieredStorage


class ReadsOntoGpus(ReadsAhead):
    """Reads ahead whose threads also move rows up: those that were read, and what a lookup found elsewhere.

    hot_tables: all devices are GPUs. move(keys): moves up rows in memory of these distinct keys, which are about to be
    used; None: of no keys; in either case it makes the moves that are due.
    """

    follows_lookup = True

    def __init__(self, *given: Any, hot_tables: GpuTables, move: Callable[[Keys | None], None]) -> None:
        super().__init__(*given)
        self._hot_tables, self._move, self._scheduled = hot_tables, move, False
        self._queued: deque[Callable[[], Keys]] = deque(maxlen=READS_AHEAD)

    def lands(self, *, awaited: bool) -> bool:
        """True: a GPU's rows are moved beside the caller's kernels."""
        return True

    def start(self, given: Callable[[], Keys], *, after_lookup: bool) -> None:
        """See ReadsAhead. Takes no lock: a thread takes it."""
        if after_lookup:
            super().start(given, after_lookup=True)
            return
        self._access.state.check_open()
        self._queued.append(given)
        with suppress(RuntimeError):  # the store is being closed
            self._readers.submit(self._start_queued)

    def looked_up(self) -> None:
        """See ReadsAhead. Takes no lock: another thread makes the moves that are due."""
        if self._waiting:
            super().looked_up()
        elif not self._scheduled and (self._kept or self._access.in_flight.left or self._hot_tables.used):
            self._scheduled = True
            with suppress(RuntimeError):  # the store is being closed
                self._readers.submit(self._move_scheduled)

    # On the threads.

    def _start_queued(self) -> None:
        with suppress(IndexError):  # it was dropped
            self.read(Unique(self._queued.popleft()()).keys)

    def read(self, keys: Keys) -> None:
        """Read the cold rows of distinct keys, and move up all rows of them."""
        super().read(keys)
        self.move(keys)

    def _move_scheduled(self) -> None:
        self._scheduled = False
        self.move()

    def move(self, keys: Keys | None = None) -> None:
        """Make moves, on any thread. Does nothing if the variable stays locked or a snapshot has no room for copies.

        A failure has poisoned the store, whose rows can still be read.
        """
        with suppress(Exception), self._access.held_if_free(LOCK_SECONDS) as held:
            if held and not self._access.state.gone and self._access.has_room:
                self._move(keys)
                self.forget_spent()
                with suppress(MemoryError):  # the next call finds them instead
                    if (rows := self._hot_tables.device_rows) is not None:
                        rows.refresh_cells()


class GpuStorage(TieredStorage):
    """The tiers of a variable whose devices are all GPUs."""

    hot_tables: GpuTables
    ahead: ReadsOntoGpus

    def _reading_ahead(self, readers: Executor) -> ReadsAhead:
        given = self.schema, self._locator, self.access, readers, self.staged.ahead, self.limits.ahead_rows
        return ReadsOntoGpus(*given, hot_tables=self.hot_tables, move=self._move)

    def _move(self, keys: Keys | None) -> None:
        if self.hot_tables.memory.has_work:
            self._reclaimer.reclaim()
        if keys is not None and self.state.cause is None:
            # If a GPU lacks memory to find keys, their rows stay where they are.
            with suppress(Poisoned, MemoryError), self.hot_tables.together():
                for start in range(0, len(keys), self.limits.call_rows):
                    part = keys[start : start + self.limits.call_rows]
                    with self.access.poisoning():
                        for leaving in self.hot_tables.move_up(part):
                            self._spill([leaving])
                    found = self.in_memory(part)
                    self.promote(found.with_cold(found.known & found.exists))


def storage_class(hot_tables: HotTables) -> type[TieredStorage]:
    """Return the class of a variable's tiers with these hot tables."""
    on_gpus = all(table.device_rows is not None for table in hot_tables.of_devices)
    return GpuStorage if on_gpus else TieredStorage
