"""Writes rows in key order to table files outside a variable's cold store, and ingests them into it together.

Not thread-safe. Keys are recorded in the background; ingest() waits for that first.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from kvemb.contracts import SortedFile
from kvemb.durability import cold_databases, layout
from kvemb.handle import inside
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.threads.interrupts import result_of
from kvemb.threads.pool import Threads
from kvemb.variable import Variable


class TableFiles:
    """Table files of one variable, with ascending and disjoint ranges of keys."""

    def __init__(self, variable: Variable, folder: Path) -> None:
        self._table, self._engine = inside(variable), inside(variable.resource_handle[0])
        self.rows, self.step = 0, 0
        self.sealed_epochs = self._engine.changes.sealed_epochs
        self._last = -1
        self._made = 0
        self._background = Threads(2, thread_name_prefix="kvemb-load")
        self._recorded: list[Future[None]] = []
        self._folder = folder
        self._keys = folder / "keys"
        limits = self._engine.limits
        self._scan_rows = limits.scan_rows
        self._max_rows = max(1, limits.table_file_bytes // RowBlock.bytes_per_row(self._table.schema))
        self._done: list[Path] = []
        self._open: SortedFile | None = None
        self._blocks: list[RowBlock] = []

    def follows(self, block: RowBlock) -> bool:
        """Whether the rows' keys ascend and are above the last key appended."""
        ordered = order_keys(block.keys, self._table.schema)
        return len(ordered) == 0 or (int(ordered[0]) > self._last and bool((ordered[1:] > ordered[:-1]).all()))

    def append(self, block: RowBlock) -> None:
        """Write rows. REQUIRES: follows(block)."""
        if len(block) == 0:
            return
        self.rows += len(block)
        self.step = max(self.step, int(np.max(block.steps)))
        ordered = order_keys(block.keys, self._table.schema)
        self._last = int(ordered[-1])
        with layout.as_cold_store_error(f"write {self._keys}"), open(self._keys, "ab") as file:
            ordered.tofile(file)
        self._recorded.append(self._background.submit(self._table.storage.record, block.keys))
        if not self._table.persistent:
            self._blocks.append(block)  # the cold store is in memory, too
            return
        if self._open is None:
            path = self._folder / f"{self._made}.sst"
            self._made += 1
            database = self._engine.database
            self._open = database.sorted_file(path, self._table.schema, self._table.specification.creator)
        self._open.append(block)
        if self._open.rows >= self._max_rows:
            self.finish()

    def drain(self) -> Iterator[RowBlock]:
        """Yield all rows in key order, and remove them."""
        self.finish()
        schema, creator, folder = self._table.schema, self._table.specification.creator, self._folder / "drained"
        blocks, self._blocks = self._blocks, []
        yield from blocks
        if self._done:
            folder.mkdir()
            database = cold_databases.to_sort_in(folder)
            try:
                rows = database.create("rows", schema, creator)
                for path in self._done:
                    database.ingest("rows", path)
                    path.unlink()
                yield from rows.scan(self._scan_rows)
            finally:
                database.close()
        self.rows, self.step, self._done, self._last = 0, 0, [], -1
        self._keys.unlink(missing_ok=True)

    def record_again(self) -> None:
        """Record the keys of all rows in the current epoch."""
        with layout.as_cold_store_error(f"read {self._keys}"), open(self._keys, "rb") as file:
            while len(ordered := np.fromfile(file, np.uint64, self._scan_rows)):
                self._table.storage.record(unordered_keys(ordered, self._table.schema))

    def finish(self) -> None:
        """Complete the current file. Raises ColdStoreError."""
        if self._open is not None:
            self._open.finish()
            self._done.append(self._open.path)
            self._open = None

    def close(self) -> None:
        """Wait for the background threads."""
        self._background.shutdown()

    def ingest(self) -> None:
        """Ingest all rows into the cold store. Raises ColdStoreError."""
        with layout.as_cold_store_error("write rows to files, or record their keys"):
            for recorded in self._recorded:
                result_of(recorded)
        self._recorded = []
        for path in self._done:
            self._engine.in_order(self._engine.database.ingest, self._table.name, path)
            path.unlink()
        for block in self._blocks:
            self._table.storage.cold.write(block)
        self._done, self._blocks, self._last = [], [], -1
