"""Appending the rows that a call has just changed to the log of writes, if the store has one.

A failure to append interrupts no call: the store is poisoned, and commit() says that the call is not durable. The
variable's lock guards every method but commit().
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from kvemb.errors import ColdStoreError
from kvemb.journal.journal import Journal
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.located import Located
from kvemb.tiers.partition import Owners, owners_at


class WriteLogging:
    """Logs the writes of the variable of this name. journal: None if the store has none; then methods do nothing."""

    def __init__(self, journal: Journal | None, name: str, hot_tables: HotTables, access: TableAccess) -> None:
        self._journal, self._name, self._hot_tables, self._access = journal, name, hot_tables, access
        self.active = journal is not None

    def located(self, found: Located, step: int) -> None:
        """Log located rows, hot or about to be."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                for rows in self._hot_tables.read(found.cells, found.owners):
                    journal.rows(self._name, rows, step)
                journal.rows(self._name, found.rows, step)

    def hot(self, keys: Keys, owners: Owners, missing: Positions, step: int) -> None:
        """Log each hot row of keys once. missing: the positions of keys that are not hot."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                hot = np.delete(np.arange(len(keys)), missing)
                hot = hot[Unique(keys[hot]).last]
                keys, owners = keys[hot], owners_at(owners, hot)
                for rows in self._hot_tables.read(self._hot_tables.find(keys, owners), owners):
                    journal.rows(self._name, rows, step)

    def rows(self, rows: RowBlock, step: int) -> None:
        """Log whole rows."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                journal.rows(self._name, rows, step)

    def removed(self, keys: Keys, step: int) -> None:
        """Log that rows were removed."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                journal.removed(self._name, order_keys(keys, self._hot_tables.schema), step)

    def counted(self, optimizer_steps: int, step: int) -> None:
        """Log the number of optimizer steps counted so far."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                journal.counted(self._name, optimizer_steps, step)

    def cleared(self, step: int) -> None:
        """Log that every row was removed."""
        if (journal := self._journal) is not None:
            with self._appending(journal):
                journal.cleared(self._name, step)

    @contextmanager
    def _appending(self, journal: Journal) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            journal.fail(error)
            self._access.state.poison(error, intact=True)

    def commit(self) -> None:
        """Wait until everything logged is on disk. Not under the lock. Raises Poisoned."""
        if self._journal is not None:
            try:
                self._journal.commit()
            except ColdStoreError as error:
                self._access.state.poison(error, intact=True)
                self._access.state.check_writable()
