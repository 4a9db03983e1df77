"""The dirty rows of one variable as they were at one instant, written out while the variable goes on changing.

begin() marks every dirty row PENDING in the hot tables. The writing thread then takes pending rows in key order, a file
at a time. It is copy on write: a row that is about to change or to leave the hot tier before its turn has come is
copied to a buffer first, and written from there; when the buffer is full, callers wait. So a snapshot holds the
variable's lock for milliseconds at a time, and its memory is bounded.

The files of rows that were taken in their turn go to the cold store in use as well, in order with its other writes. A
row that did not change until then is clean: it is still marked WRITING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

import numpy as np

from kvemb.contracts import SortedFile
from kvemb.errors import ColdStoreError
from kvemb.rows.block import PENDING, SNAPSHOT_FLAGS, RowBlock
from kvemb.rows.codec import Ordered, order_keys, unordered_keys
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.schema import Schema
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables, Owners

# Rows of a file where a spent budget leaves no room for more: a file of a few rows costs a thousand times its rows. So
# much may be in memory beyond the budget, once in a store, while a checkpoint is written.
MIN_FILE_BYTES = 1 << 20


class DirtySnapshot:
    """One snapshot of one variable.

    in_order: the one thread that writes to the cold store in use. written: called, under the lock, with keys whose rows
    have changed there. room_rows: rows that the buffer holds before callers wait for the disk. file_bytes: rows taken
    at a time, at most. spilling: the last write given to in_order of rows that had left the hot tier before; None:
    there is none.
    """

    def __init__(
        self,
        schema: Schema,
        hot_tables: HotTables,
        access: TableAccess,
        in_order: Executor,
        written: Callable[[Keys], None],
        room_rows: int,
        file_bytes: int,
        spilling: Future[Keys] | None = None,
    ) -> None:
        self._spilling = spilling
        self._schema, self._hot_tables, self._access = schema, hot_tables, access
        self._in_order, self._written = in_order, written
        row_bytes = RowBlock.bytes_per_row(schema)
        self._file_rows = max(1, min(max(room_rows // 2, MIN_FILE_BYTES // row_bytes), file_bytes // row_bytes))
        self._copies: list[RowBlock] = []
        self._copied_rows, self._room_rows = 0, room_rows
        self._keys: list[Keys] = []
        self._lost: Exception | None = None
        self._ordered: Ordered | None = None

    # By the tiered storage. REQUIRES: access.held().

    def begin(self) -> None:
        """Mark every dirty row."""
        self._access.set_snapshot(True)
        self._keys = [table.mark_dirty_pending() for table in self._hot_tables.tables]

    def copy_before_change(self, keys: Keys, cells: Positions | None, owners: Owners) -> None:
        """These hot rows may change now: copy those that are pending. cells: where they are, if that is known."""
        for table, positions in self._hot_tables.by_table(owners):
            at = table.find(keys[positions]) if cells is None else cells[positions]
            self._keep(table.release_pending(at))

    def copy_before_leaving(self, rows: RowBlock) -> None:
        """These rows have left the hot tier: copy those that are pending, and take the marks off."""
        try:
            pending = rows.select(rows.flags & PENDING != 0)
        except Exception as error:
            self._lost = error
            raise
        self._keep(pending)
        rows.flags &= ~SNAPSHOT_FLAGS

    def _keep(self, rows: RowBlock) -> None:
        """Put rows that no table marks any more into the buffer: without them the snapshot cannot be written."""
        try:
            if len(rows):
                self._buffer(rows)
        except Exception as error:
            self._lost = error
            raise

    def _buffer(self, rows: RowBlock) -> None:
        self._copies.append(rows)
        self._copied_rows += len(rows)
        if self._copied_rows >= self._room_rows:
            self._access.set_room(False)

    def end(self) -> None:
        """Forget the snapshot, written or not."""
        for table in self._hot_tables.tables:
            table.release_all()
        self._copies, self._copied_rows = [], 0
        self._access.set_snapshot(False)

    # By the writing thread, without the lock.

    def check_spilled(self) -> None:
        """Raise the error of a write of rows that had left before: the cold store lacks them. REQUIRES: on in_order."""
        if self._spilling is not None:
            self._spilling.result()

    def keys(self) -> Ordered:
        """Return the keys of the snapshot, ascending."""
        if self._ordered is None:
            self._ordered, self._keys = np.sort(order_keys(np.concatenate(self._keys), self._schema)), []
        return self._ordered

    def write(self, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None]) -> Iterator[SortedFile]:
        """Write the rows of the snapshot; yields finished files, whose keys are all distinct.

        new_file: makes one, on any thread. ingest: gives one to the cold store in use. REQUIRES: called once, after
        all earlier writes were given to in_order.
        """
        ordered = self.keys()
        # Where the buffer may hold all of it nobody waits for the disk, and one file is less to compact than many.
        file_rows = self._file_rows if len(ordered) > self._room_rows else max(1, len(ordered))
        for start in range(0, len(ordered), file_rows):
            keys = unordered_keys(ordered[start : start + file_rows], self._schema)
            with self._access.held():
                rows = self._take(keys)
                # Given to the thread under the lock: a later change of a row, spilled, is written after this one.
                writing = self._in_order.submit(_write_file, rows, new_file, ingest) if len(rows) else None
            if writing is not None:
                yield writing.result()
                self._mark_written(keys)
        yield from self._write_copies(new_file, more_than=0)
        if self._lost is not None:
            raise ColdStoreError(f"a row could not be kept for the checkpoint: {self._lost!r}") from self._lost

    def relieve(self, new_file: Callable[[], SortedFile]) -> Iterator[SortedFile]:
        """Write copies until the buffer is half empty, so that callers need not wait; yields files as write() does.

        On the same thread as write(), before it or between its files.
        """
        yield from self._write_copies(new_file, more_than=self._room_rows // 2)

    def _take(self, keys: Keys) -> RowBlock:
        """Return the rows of keys that are still pending, in that order."""
        found, taken = RowBlock(self._schema, len(keys)), np.zeros(len(keys), np.bool_)
        for table, positions in self._hot_tables.by_table(self._hot_tables.owners(keys)):
            at, rows = table.take_pending(table.find(keys[positions]))
            here = np.arange(len(keys))[positions][at]
            found.put(here, rows)
            taken[here] = True
        return found if taken.all() else found.select(taken)

    def _mark_written(self, keys: Keys) -> None:
        """The cold store has these rows as they were taken."""
        with self._access.held():
            self._written(keys)  # first: of rows that are clean, no older read may be used
            for table, positions in self._hot_tables.by_table(self._hot_tables.owners(keys)):
                table.mark_written(table.find(keys[positions]))

    def _write_copies(self, new_file: Callable[[], SortedFile], more_than: int) -> Iterator[SortedFile]:
        """While more rows are in the buffer, write some to a file for the checkpoint only."""
        while True:
            with self._access.held():
                if self._copied_rows <= more_than:
                    return
                rows = self._take_copies()
            yield _write_file(rows.select(np.argsort(order_keys(rows.keys, self._schema))), new_file, lambda file: None)

    def _take_copies(self) -> RowBlock:
        """Take a file's worth of rows, or what there is, from the buffer."""
        taken, count = [], 0
        while self._copies and count < self._file_rows:
            taken.append(self._copies.pop())
            count += len(taken[-1])
        rows = RowBlock.joined(taken, self._schema)
        self._copied_rows -= count
        self._access.set_room(self._copied_rows < self._room_rows)
        return rows


def _write_file(rows: RowBlock, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None]) -> SortedFile:
    file = new_file()
    file.append(rows)
    file.finish()
    ingest(file)
    return file
