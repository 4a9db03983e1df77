"""A cut: the dirty rows of one variable at one instant, written out while the variable goes on changing.

begin() marks every dirty cell PENDING. The writing thread then takes pending rows in key order, a pile at a time, and
writes each pile as a sorted file. A row that is about to change or to leave the hot tier before its turn has come is
copied to the side first (keep, keep_leaving) and written from there; when too many wait there, callers wait. So a cut
holds the tier's lock for milliseconds at a time, and its memory is bounded.

The files of rows that were taken in their turn go to the cold store in use as well, in order with its other writes. A
row that did not change until then is clean: WRITING tells. The tier's lock guards everything but write() and
wait_for_room().
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from kvemb.contracts import SortedFile
from kvemb.errors import ColdStoreError
from kvemb.interrupts import wait_for
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.schema import Schema
from kvemb.tiers.hot_tables import HotTables

# Bytes of rows taken at a time: one sorted file each, whose writing is what callers may have to wait for.
TAKE_BYTES = 2 << 20

_MARKS = np.uint8(PENDING | WRITING)


class DirtySnapshot:
    """One cut of one variable.

    executor: the one thread that writes to the cold store in use. forget: called with keys whose rows have changed
    there. room_rows: rows that may wait at the side before callers wait for the disk.
    """

    def __init__(
        self,
        schema: Schema,
        hot_tables: HotTables,
        lock: threading.Lock,
        executor: Executor,
        forget: Callable[[Keys], None],
        room_rows: int,
    ) -> None:
        self._schema, self._hot_tables, self._lock = schema, hot_tables, lock
        self._executor, self._forget = executor, forget
        self._pile_rows = max(1, min(room_rows // 2, TAKE_BYTES // RowBlock.bytes_per_row(schema)))
        self._kept: list[RowBlock] = []
        self._kept_rows, self._room_rows = 0, room_rows
        self._room = threading.Event()
        self._room.set()
        self._keys: list[Keys] = []
        self._lacking: Exception | None = None
        self._ordered: npt.NDArray[np.uint64] | None = None

    # By the tier, under its lock.

    def begin(self) -> None:
        """Mark every dirty row."""
        for table in self._hot_tables.tables:
            block, used = table.block, slice(0, table.capacity_rows)
            dirty = np.flatnonzero(block.flags[used] & DIRTY)
            block.flags[dirty] |= np.uint8(PENDING)
            self._keys.append(block.keys[dirty])

    def keep(self, keys: Keys, cells: Positions | None = None) -> None:
        """These hot rows may change now: copy those that are pending. cells: where they are, if that is known."""
        for table, places in self._hot_tables.split(keys):
            block = table.block
            at = table.find(keys[places]) if cells is None else cells[places]
            at = at[at >= 0]
            at = np.unique(at[block.flags[at] & _MARKS != 0])
            if len(at):
                self._put_aside(block.select(at[block.flags[at] & PENDING != 0]))
                block.flags[at] &= ~_MARKS

    def keep_leaving(self, rows: RowBlock) -> None:
        """These rows leave the hot tier: copy those that are pending, and take the marks off."""
        try:
            self._put_aside(rows.select(rows.flags & PENDING != 0))
        except Exception as error:
            self._lacking = error
            raise
        rows.flags &= ~_MARKS

    def _put_aside(self, rows: RowBlock) -> None:
        if len(rows):
            self._kept.append(rows)
            self._kept_rows += len(rows)
            if self._kept_rows >= self._room_rows:
                self._room.clear()

    def end(self) -> None:
        """Forget the cut, written or not."""
        for table in self._hot_tables.tables:
            table.block.flags[: table.capacity_rows] &= ~_MARKS
        self._kept, self._kept_rows = [], 0
        self._room.set()

    # By anybody, without the lock.

    def wait_for_room(self) -> None:
        """Wait until rows may be put aside again."""
        wait_for(self._room)

    def keys(self) -> npt.NDArray[np.uint64]:
        """Return the keys of the cut, ascending by codec.order_keys. One caller at a time."""
        if self._ordered is None:
            self._ordered, self._keys = np.sort(order_keys(np.concatenate(self._keys), self._schema)), []
        return self._ordered

    def write(self, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None]) -> Iterator[SortedFile]:
        """Write the rows of the cut; yields finished files, whose keys are all distinct.

        new_file: makes one, on any thread. ingest: gives one to the cold store in use. REQUIRES: called once, after
        every write of the time before the cut was given to the executor.
        """
        ordered = self.keys()
        # Where all of it may wait at the side nobody waits for the disk, and one file is less to compact than many.
        pile_rows = self._pile_rows if len(ordered) > self._room_rows else max(1, len(ordered))
        for start in range(0, len(ordered), pile_rows):
            keys = unordered_keys(ordered[start : start + pile_rows], self._schema)
            with self._lock:
                rows = self._take(keys)
                # Given to the executor under the lock: a later change of a row, spilled, is written after this one.
                writing = self._executor.submit(_write_file, rows, new_file, ingest) if len(rows) else None
            if writing is not None:
                yield writing.result()
                self._mark_clean(keys)
            yield from self._write_aside(new_file, more_than=self._room_rows // 2)
        yield from self._write_aside(new_file, more_than=0)
        if self._lacking is not None:
            raise ColdStoreError(f"a row could not be kept for the checkpoint: {self._lacking!r}") from self._lacking

    def _take(self, keys: Keys) -> RowBlock:
        """Return the rows of keys that are still pending, in that order."""
        found, taken = RowBlock(self._schema, len(keys)), np.zeros(len(keys), np.bool_)
        for table, places in self._hot_tables.split(keys):
            block, cells = table.block, table.find(keys[places])
            pending = np.flatnonzero((cells >= 0) & (block.flags[cells] & PENDING != 0))
            here = np.arange(len(keys))[places][pending]
            found.put(here, block.select(cells[pending]))
            taken[here] = True
            block.flags[cells[pending]] ^= _MARKS  # from PENDING to WRITING
        return found if taken.all() else found.select(taken)

    def _mark_clean(self, keys: Keys) -> None:
        """The cold store has these rows as they were taken."""
        with self._lock:
            for table, places in self._hot_tables.split(keys):
                cells = table.find(keys[places])
                cells = cells[cells >= 0]
                cells = cells[table.block.flags[cells] & WRITING != 0]
                table.block.flags[cells] &= ~np.uint8(WRITING | DIRTY)
            self._forget(keys)

    def _write_aside(self, new_file: Callable[[], SortedFile], more_than: int) -> Iterator[SortedFile]:
        """While more rows lie at the side, write some to a file for nobody but the checkpoint."""
        while True:
            with self._lock:
                if self._kept_rows <= more_than:
                    return
                rows = self._some_kept()
            yield _write_file(rows.select(np.argsort(order_keys(rows.keys, self._schema))), new_file, lambda file: None)

    def _some_kept(self) -> RowBlock:
        """Take a pile of rows, or what there is, from the side."""
        taken, count = [], 0
        while self._kept and count < self._pile_rows:
            taken.append(self._kept.pop())
            count += len(taken[-1])
        rows, at = RowBlock(self._schema, count), 0
        for part in taken:
            rows.put(slice(at, at + len(part)), part)
            at += len(part)
        self._kept_rows -= count
        if self._kept_rows < self._room_rows:
            self._room.set()
        return rows


def _write_file(rows: RowBlock, new_file: Callable[[], SortedFile], ingest: Callable[[SortedFile], None]) -> SortedFile:
    file = new_file()
    file.append(rows)
    file.finish()
    ingest(file)
    return file
