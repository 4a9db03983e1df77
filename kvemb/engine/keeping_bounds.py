"""Keeping tables within their bounds (kvemb.restrict.bounds) on a thread of the store's own, one table at a time.

The thread begins with the first table that has bounds, and refers to its store weakly, so a store that nothing else
refers to is still found not closed. It takes no lock of the store, so close() can wait for it. While the store is
poisoned it restricts nothing. What fails is logged and tried again, after pauses that grow up to a minute; a failure
while rows move poisons the store, as in any call.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import Closed, Poisoned, ReadOnly
from kvemb.restrict import MissingPolicy
from kvemb.restrict.bounds import Age, Bounds, expired_before, is_due

_logger = logging.getLogger("kvemb")
# Seconds between two looks at the tables' sizes, and the longest rest between two batches.
LOOK_SECONDS, REST_SECONDS = 0.1, 0.1
MOST_RETRY_SECONDS = 60.0
# A table that exceeds its bound by so many margins is restricted without rests.
_HURRY = 2


def keep_bounds(engine: Engine, table: Table) -> None:
    """Keep a table's bounds from now on, if it has any and is not read-only. REQUIRES: the engine's lock."""
    if engine.state.read_only or table.operations.bounds == Bounds():
        return
    if isinstance(table.policy, MissingPolicy):
        _logger.warning(
            "the bounds of variable %r, %s, are not kept while it is open without its policy %s; give get_variable "
            "the restrict_policy= that it has",
            table.name, _told(table.operations.bounds), table.policy.class_name,
        )  # fmt: skip
    if engine.keeper is None:
        engine.keeper = Keeper(engine, engine.closing.wait)
        engine.keeper.start()


def set_bounds(engine: Engine, table: Table, bounds: Bounds) -> None:
    """Change a table's bounds. Raises Closed, ReadOnly, Poisoned. REQUIRES: the engine's lock."""
    if bounds != (before := table.operations.bounds):
        check_may_change(engine, table.name)
        table.set_bounds(bounds)
        _logger.info("the bounds of variable %r become %s; they were %s", table.name, _told(bounds), _told(before))
        keep_bounds(engine, table)


def check_may_change(engine: Engine, name: str) -> None:
    """Raise ReadOnly if the store only reads: then bounds and policies are those of the store that it reads."""
    if engine.state.read_only:
        raise ReadOnly(
            f"the read-only store {engine.state.name} cannot change max_rows, ttl or the policy of variable {name!r}; "
            "leave them out"
        )


def _told(bounds: Bounds) -> str:
    parts = [f"max_rows={bounds.max_rows:,}"] if bounds.max_rows is not None else []
    parts += [f"ttl={bounds.ttl:g}"] if bounds.ttl is not None else []
    return ", ".join(parts) or "none"


class _Ended(Exception):
    """The store is being closed."""


class Keeper(threading.Thread):
    """The thread.

    wait: waits for so many seconds, or until the store is closed; returns whether it is. clock: seconds since 1970.
    retry_seconds: how long to wait before the first retry.
    """

    def __init__(
        self,
        engine: Engine,
        wait: Callable[[float], bool],
        clock: Callable[[], float] = time.time,
        retry_seconds: float = 1.0,
    ) -> None:
        super().__init__(name="kvemb-bounds", daemon=True)
        self._engine, self._wait, self._clock, self._retry_seconds = weakref.ref(engine), wait, clock, retry_seconds
        # For each table whose restriction failed: when it is tried again, and how long to wait after that.
        self._retries: weakref.WeakKeyDictionary[Table, tuple[float, float]] = weakref.WeakKeyDictionary()

    def run(self) -> None:
        """Look at the tables until the store is closed."""
        while not self._wait(LOOK_SECONDS):
            if (engine := self._engine()) is None or engine.state.gone:
                return
            self.look(engine)
            del engine  # otherwise this thread would keep the store alive while it waits

    def look(self, engine: Engine) -> None:
        """Restrict the tables that exceed their bounds."""
        for table in list(engine.tables.values()):
            if engine.state.cause is None and self._may_try(table):
                self._try(engine, table)

    def _may_try(self, table: Table) -> bool:
        again, _ = self._retries.get(table, (0.0, 0.0))
        return time.monotonic() >= again and not isinstance(table.policy, MissingPolicy)

    def _try(self, engine: Engine, table: Table) -> None:
        try:
            self._keep(engine, table)
            self._retries.pop(table, None)
        except (Closed, Poisoned, _Ended):
            pass  # the table was dropped, or the store is closed; or the next call that writes raises Poisoned
        except Exception as error:
            _, delay = self._retries.get(table, (0.0, self._retry_seconds))
            self._retries[table] = time.monotonic() + delay, min(2 * delay, MOST_RETRY_SECONDS)
            if engine.state.cause is None and threading.main_thread().is_alive():
                _logger.warning(
                    "variable %r of %s could not be restricted to its bounds, %s, which will be tried again: %r",
                    table.name, engine.path, _told(table.operations.bounds), error,
                )  # fmt: skip

    def _keep(self, engine: Engine, table: Table) -> None:
        storage, refreshes = table.storage, table.storage.refreshes  # before the ages, which a rollback replaces
        bounds, expired, ages = table.operations.bounds.of_shard(engine.shards), 0, table.ages
        if bounds.ttl is None:
            table.ages = ()
        else:
            self._note_age(table, bounds.ttl)
            expired, ages = expired_before(table.ages, self._clock(), bounds.ttl)
        exceeded = bounds.are_exceeded(table.storage.size)
        if not (exceeded or expired):
            return

        def pause(took: float) -> None:
            hurried = bounds.exceeded_margins(table.storage.size) > _HURRY
            if engine.closing.wait(0.0 if hurried else min(took, REST_SECONDS)):
                raise _Ended

        table.operations.keep_bounds(bounds.max_rows if exceeded else None, expired, pause, refreshes)
        with storage.access.held(land=False):
            if storage.refreshes == refreshes:
                table.ages = ages

    def _note_age(self, table: Table, ttl: float) -> None:
        """If rows have changed since the last age, and it is time, begin another: later changes have another step."""
        now, storage = self._clock(), table.storage
        if is_due(table.ages, now, ttl) and (storage.changed or not table.ages):
            with storage.access.held(land=False):
                storage.state.check_writable()
                storage.step, storage.changed = storage.step + 1, False
                table.ages = (*table.ages, Age(now, storage.step))
