"""Appending the rows that a call has just changed to the log of writes, if the store has one.

A failure to append interrupts no call: the store is poisoned, and commit() says that the call is not durable. The
variable's lock guards every method but commit().
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvemb.contracts import WriteLog
from kvemb.errors import ColdStoreError
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.located import Located
from kvemb.tiers.partition import Owners, owners_at


class WriteLogging:
    """Logs the writes of one variable. log: None: the store has no log, and every method does nothing."""

    def __init__(self, log: WriteLog | None, hot_tables: HotTables, access: TableAccess) -> None:
        self._log, self._hot_tables, self._access = log, hot_tables, access
        self.active = log is not None

    def located(self, found: Located, step: int) -> None:
        """Log located rows, hot or about to be."""
        if (log := self._log) is not None:
            with self._appending(log):
                for rows in self._hot_tables.read(found.cells, found.owners):
                    log.rows(rows, step)
                log.rows(found.rows, step)

    def hot(self, keys: Keys, owners: Owners, missing: Positions, step: int) -> None:
        """Log each hot row of keys once. missing: the positions of keys that are not hot."""
        if (log := self._log) is not None:
            with self._appending(log):
                hot = np.delete(np.arange(len(keys)), missing)
                hot = hot[Unique(keys[hot]).last]
                keys, owners = keys[hot], owners_at(owners, hot)
                for rows in self._hot_tables.read(self._hot_tables.find(keys, owners), owners):
                    log.rows(rows, step)

    def rows(self, rows: RowBlock, step: int) -> None:
        """Log whole rows."""
        if (log := self._log) is not None:
            with self._appending(log):
                log.rows(rows, step)

    def removed(self, keys: Keys, step: int) -> None:
        """Log that rows were removed."""
        if (log := self._log) is not None:
            with self._appending(log):
                log.removed(order_keys(keys, self._hot_tables.tables[0].schema), step)

    def counted(self, optimizer_steps: int, step: int) -> None:
        """Log the number of optimizer steps counted so far."""
        if (log := self._log) is not None:
            with self._appending(log):
                log.counted(optimizer_steps, step)

    def cleared(self, step: int) -> None:
        """Log that every row was removed."""
        if (log := self._log) is not None:
            with self._appending(log):
                log.cleared(step)

    @contextmanager
    def _appending(self, log: WriteLog) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            log.fail(error)
            self._access.state.poison(error, intact=True)

    def commit(self) -> None:
        """Wait until everything logged is on disk. Not under the lock. Raises Poisoned."""
        if self._log is not None:
            try:
                self._log.commit()
            except ColdStoreError as error:
                self._access.state.poison(error, intact=True)
                self._access.state.check_writable()
