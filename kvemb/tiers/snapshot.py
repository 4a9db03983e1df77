"""The snapshot of one variable's dirty rows at one instant, written to files while the variable continues to change.

The invariant: until it is in a file, each row of the snapshot is in one place, as it was at that instant: in its hot
cell, marked PENDING; in a part that was taken; or in the buffer of copies. Marks (contracts.HotTable) change so:

    none     PENDING  begin() marks every dirty row, under the locks of all variables
    PENDING  WRITING  the writing thread takes pending rows in key order, some at a time, to write them to a file
    PENDING  none     the row is about to change, or has left: it is copied to the buffer, and written from there
    WRITING  none     the row changes, or leaves: it stays dirty, because the file has it as it was
    WRITING  none     the cold store in use has the file, and the row has not changed since: it becomes clean
    any      none     end(), written or not

So a snapshot holds the variable's lock for milliseconds at a time. Its memory is bounded: callers wait while the buffer
is full. Copies are written to files of the checkpoint only. Files of rows that were taken also go to the cold store in
use, in order with its other writes. Such a file must end before other rows of the variable are written there: a row in
it may have changed since, and have left the hot tier. Rows in a file that has not ended are dirty, so they are read
from the hot tier or from a memtable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import chain
from typing import NamedTuple

import numpy as np

from kvemb.contracts import SortedFile
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.memory.memtables import Memtables
from kvemb.memory.staging import Holding
from kvemb.rows.block import PENDING, SNAPSHOT_FLAGS, RowBlock
from kvemb.rows.codec import Ordered, order_keys, unordered_keys
from kvemb.rows.hashing import Keys, Positions
from kvemb.tiers.access import TableAccess
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Owners

# Bytes of rows that are taken at a time if the budget has no room for more. A store may use this much memory beyond the
# budget while a checkpoint is written.
MIN_PART_BYTES = 1 << 20
# A larger snapshot gets larger files: every file is one more that lookups search until it is merged with others.
MOST_FILES = 16


class CurrentSnapshot:
    """Begins and ends the snapshots of one variable, one at a time.

    own_copies: how many rows may always be copied. memory: pays for more.
    """

    def __init__(
        self,
        hot_tables: HotTables,
        memtables: Memtables,
        access: TableAccess,
        own_copies: int,
        memory: Holding,
        limits: Limits,
    ) -> None:
        self._hot_tables, self._memtables, self._access = hot_tables, memtables, access
        self._own_copies, self._memory, self._limits = own_copies, memory, limits
        self._snapshot: DirtySnapshot | None = None

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is being written, so that copy_before_change() is needed."""
        return self._snapshot is not None

    # For a checkpoint (kvemb.durability.checkpointer).

    def begin(self, sharing: int = 1) -> DirtySnapshot:
        """Begin a snapshot of the dirty rows, kept until end(). REQUIRES: held(), and no other snapshot.

        sharing: the number of variables, this one included, that have yet to begin; they share the memory for copies.
        On return, a write of all rows in memtables has been given to the executor. Raises Poisoned if there are others.
        """
        with self._access.state.keeping_rows():
            self._memtables.check()
            earlier = self._memtables.seal()
        room_rows = self._own_copies + self._more_copies(sharing)
        self._snapshot = DirtySnapshot(self._hot_tables, self._memtables, self._access, room_rows, self._limits)
        self._snapshot.begin(earlier)
        return self._snapshot

    def _more_copies(self, sharing: int) -> int:
        """Take memory for more copies than the variable's own; return for how many.

        The available memory is divided into equal parts: one for each variable that shares it, one for reads.
        """
        row_bytes = RowBlock.bytes_per_row(self._hot_tables.schema)
        part = self._memory.available // (sharing + 1) // row_bytes
        wanted = max(0, min(self._limits.copied_rows - self._own_copies, part))
        return wanted if self._memory.take(wanted * row_bytes) else 0

    def end(self) -> None:
        """End the snapshot, if there is one. Takes the lock."""
        with self._access.held():
            if self._snapshot is not None:
                self._snapshot.end()
                self._snapshot = None
            self._memory.give_back(self._memory.held)

    # For calls that change or move rows. Without a snapshot they do nothing.

    def copy_before_change(self, keys: Keys, cells: Positions | None, owners: Owners) -> None:
        """Copy rows that may change now, if the snapshot needs them. cells: their cells, if known."""
        if self._snapshot is not None:
            self._snapshot.copy_before_change(keys, cells, owners)

    def copy_before_leaving(self, rows: RowBlock) -> None:
        """Copy rows that have left the hot tier, if the snapshot needs them, and clear their marks."""
        if self._snapshot is not None:
            self._snapshot.copy_before_leaving(rows)

    def before_write(self) -> None:
        """End the snapshot's file before other rows are written on this thread. Takes no lock."""
        if (snapshot := self._snapshot) is not None:
            snapshot.before_write()


class DirtySnapshot:
    """One snapshot of one variable. room_rows: how many rows the buffer holds before callers wait for the disk."""

    def __init__(
        self, hot_tables: HotTables, memtables: Memtables, access: TableAccess, room_rows: int, limits: Limits
    ) -> None:
        self._hot_tables, self._memtables, self._access = hot_tables, memtables, access
        self._schema = hot_tables.schema
        row_bytes = RowBlock.bytes_per_row(self._schema)
        part_rows = min(max(room_rows // 2, MIN_PART_BYTES // row_bytes), limits.snapshot_part_bytes // row_bytes)
        self._part_rows, self._file_rows = max(1, part_rows), limits.table_file_bytes // row_bytes
        self._growing: GrowingFile | None = None
        self._copies: list[RowBlock] = []
        self._copied_rows, self._room_rows = 0, room_rows
        self._keys: list[Keys] = []
        self._lost: BaseException | None = None
        self._ordered: Ordered | None = None
        self._earlier: Future[None] | None = None

    # Called by the tiered storage. REQUIRES: access.held().

    def begin(self, earlier: Future[None] | None = None) -> None:
        """Mark every dirty row. earlier: the last write of rows that had left the hot tier; None: there is none."""
        self._earlier = earlier
        self._access.set_snapshot(True)
        self._keys = [table.mark_dirty_pending() for table in self._hot_tables.tables]

    def copy_before_change(self, keys: Keys, cells: Positions | None, owners: Owners) -> None:
        """Copy the pending ones of these rows, because they may change now. cells: their cells, if known."""
        for table, positions in self._hot_tables.by_table(owners):
            at = table.find(keys[positions]) if cells is None else cells[positions]
            with self._losing():
                self._copy(table.release_pending(at))

    def copy_before_leaving(self, rows: RowBlock) -> None:
        """Copy the pending ones of these rows, because they have left the hot tier, and clear all marks."""
        with self._losing():
            self._copy(rows.select(rows.flags & PENDING != 0))
        rows.flags &= ~SNAPSHOT_FLAGS

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """A block that takes over rows that are marked in no table. If it fails, so does the snapshot."""
        before = self._lost
        # First, because an exception that another thread raises may come anywhere, even as another is handled.
        self._lost = before or RuntimeError("the call was interrupted")
        try:
            yield
        except BaseException as error:
            self._lost = error
            raise
        self._lost = before

    def _copy(self, rows: RowBlock) -> None:
        if len(rows):
            self._copies.append(rows)
            self._copied_rows += len(rows)
            if self._copied_rows >= self._room_rows:
                self._access.set_room(False)

    def end(self) -> None:
        """End the snapshot, written or not."""
        for table in self._hot_tables.tables:
            table.release_all()
        self._copies, self._copied_rows = [], 0
        self._access.set_snapshot(False)

    # Called by the writing thread, without the lock.

    def check_written(self) -> None:
        """Raise the error of the earlier write, whose rows the cold store lacks. REQUIRES: on the executor's thread."""
        if self._earlier is not None:
            self._earlier.result()

    def keys(self) -> Ordered:
        """Return the keys of the snapshot, ascending."""
        if self._ordered is None:
            self._ordered, self._keys = np.sort(order_keys(np.concatenate(self._keys), self._schema)), []
        return self._ordered

    def write(
        self, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None]
    ) -> Iterator[list[SortedFile]]:
        """Write the rows of the snapshot; yields, part by part, the files that were finished meanwhile.

        A key is in at most one file. new_file: makes a file, on any thread. ingest: gives a file to the cold store in
        use. REQUIRES: called once, after all earlier writes were given to the executor.
        """
        ordered = self.keys()
        # If the buffer can hold the whole snapshot, no caller waits for the disk.
        part_rows = self._part_rows if len(ordered) > self._room_rows else max(1, len(ordered))
        self._growing = GrowingFile(new_file, ingest, max(self._file_rows, len(ordered) // MOST_FILES))
        for start in range(0, len(ordered), part_rows):
            keys = unordered_keys(ordered[start : start + part_rows], self._schema)
            last = start + part_rows >= len(ordered)
            with self._access.held():
                rows = self._take(keys)
                # Submitted under the lock, so that a later change of a row is written after this write.
                adding = self._memtables.executor.submit(self._growing.add, keys, rows, last=last)
            del rows
            yield self._mark_written(adding.result())
        for file in self._write_copies(new_file, more_than=0):
            yield [file]
        with self._access.held(land=False):  # as a call may be copying rows
            lost = self._lost
        if lost is not None:
            raise ColdStoreError(
                f"the checkpoint failed: a row could not be copied before it changed: {lost!r}"
            ) from lost

    def before_write(self) -> None:
        """Prepare for a write to the cold store of rows that left the hot tier. REQUIRES: as check_written()."""
        if self._growing is not None:
            self._growing.end_early()

    @property
    def crowded(self) -> bool:
        """Whether callers may soon wait for room in the buffer."""
        return self._copied_rows > self._room_rows // 2

    def relieve(self, new_file: Callable[[], SortedFile]) -> Iterator[SortedFile]:
        """Write copies until it is no longer crowded; yields finished files.

        REQUIRES: called on the thread of write(), before write() or between its parts.
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

    def _mark_written(self, ended: list[FinishedFile]) -> list[SortedFile]:
        """Record that the cold store has the rows of files as they were taken; returns the files."""
        for keys in chain.from_iterable(each.parts for each in ended):
            with self._access.held():
                self._memtables.forget_reads(keys)  # first, because older reads of clean rows must not be used
                for table, positions in self._hot_tables.by_table(self._hot_tables.owners(keys)):
                    table.mark_written(table.find(keys[positions]))
        return [each.file for each in ended]

    def _write_copies(self, new_file: Callable[[], SortedFile], more_than: int) -> Iterator[SortedFile]:
        """Write copies to files for the checkpoint only, until at most more_than rows are in the buffer."""
        while True:
            with self._access.held():
                if self._copied_rows <= more_than:
                    return
                rows = self._take_copies()
            file = new_file()
            file.append(rows.select(np.argsort(order_keys(rows.keys, self._schema))))
            file.finish()
            yield file

    def _take_copies(self) -> RowBlock:
        """Take rows from the buffer, at most about a part."""
        taken, count = [], 0
        while self._copies and count < self._part_rows:
            taken.append(self._copies.pop())
            count += len(taken[-1])
        rows = RowBlock.joined(taken, self._schema)
        self._copied_rows -= count
        self._access.set_room(self._copied_rows < self._room_rows)
        return rows


class FinishedFile(NamedTuple):
    """A file that the cold store in use has taken. parts: the keys of each part of its rows."""

    file: SortedFile
    parts: list[Keys]


class GrowingFile:
    """One sorted file after another. new_file, ingest: see DirtySnapshot.write. most_rows: rows in a file.

    REQUIRES: every method is called on the one thread that writes to the cold store.
    """

    def __init__(
        self, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None], most_rows: int
    ) -> None:
        self._new_file, self._ingest, self._most_rows = new_file, ingest, most_rows
        self._file: SortedFile | None = None
        self._parts: list[Keys] = []
        self._rows = 0
        self._ended: list[FinishedFile] = []
        self._failure: Exception | None = None

    def add(self, keys: Keys, rows: RowBlock, *, last: bool) -> list[FinishedFile]:
        """Add a part, whose keys follow the previous part's. rows: of some of its keys. last: end the file then.

        Returns the files that have ended since the last call. Raises an error of this or an earlier call.
        """
        with self._failing():
            if len(rows):
                if self._file is None:
                    self._file = self._new_file()
                self._file.append(rows)
                self._parts.append(keys)
                self._rows += len(rows)
            if last or self._rows + len(rows) > self._most_rows:
                self._end()
        ended, self._ended = self._ended, []
        return ended

    def end_early(self) -> None:
        """End the file, because other rows are about to be written. The next call raises the error if that fails."""
        with suppress(Exception), self._failing():
            self._end()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A block that fails as an earlier one did. A file that failed is never ingested."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except Exception as error:
            self._failure, self._file = error, None
            raise

    def _end(self) -> None:
        if self._file is not None:
            self._file.finish()
            self._ingest(self._file)
            self._ended.append(FinishedFile(self._file, self._parts))
            self._file, self._parts, self._rows = None, [], 0
