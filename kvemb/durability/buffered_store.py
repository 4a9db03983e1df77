"""A cold store with memtables before it, for one thread that uses it alone: to recover a store, or to repair one."""

from __future__ import annotations

import numpy as np

from kvemb.contracts import ColdStore, Mask
from kvemb.limits import DEFAULT, Limits
from kvemb.memory.memtables import MemtableMemory, Memtables
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys
from kvemb.rows.schema import Schema
from kvemb.threads.pool import Here


class BufferedStore:
    """Rows of one variable. memory: what it shares with others. REQUIRES: close() at the end, also after an error."""

    def __init__(self, cold: ColdStore, schema: Schema, memory: MemtableMemory, limits: Limits = DEFAULT) -> None:
        self._cold, self._schema = cold, schema
        self._memtables = Memtables(
            schema, memory, limits.memtable_rows, Here(), cold.write, lambda keys: None, self._fail, limits
        )
        self._failure: BaseException | None = None

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def write(self, rows: RowBlock) -> None:
        """Replace rows; delete those flagged REMOVED. Raises ColdStoreError."""
        self._memtables.add([rows])
        if self._failure is not None:
            raise self._failure

    def have(self, keys: Keys) -> Mask:
        """Return which of some distinct keys have a row. Raises Corruption, ColdStoreError."""
        known, exists = np.zeros((2, len(keys)), np.bool_)
        self._memtables.read(RowBlock.with_keys(self._schema, keys), known, exists)
        if not known.all():
            exists[~known] = self._cold.read(keys[~known])[1]
        return exists

    def clear(self) -> None:
        """Delete every row."""
        with self._memtables.paused():
            self._cold.clear()
            self._memtables.forget()

    def flush(self) -> None:
        """Write the rows in memory. Raises ColdStoreError."""
        self._memtables.flush()

    def close(self) -> None:
        """Forget the rows in memory."""
        self._memtables.end()
