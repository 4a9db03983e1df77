"""Rows on their way from the hot tier to the cold store: memtables, which are written to a file each.

Dirty rows that leave the hot tier, and removals, are added to the variable's newest memtable in the order in which they
come. They are readable there, and of a key's rows the last one counts. A memtable that is full is sealed, and so is the
largest one of the store if memory is short: one thread writes it to the cold store in the background, and forgets it
when its rows can be read from there. A caller waits only if all memory for memtables is used.

A failure to write rows, or to take them over, loses none and interrupts no call: they stay in memory, and the store is
poisoned until retry(). RocksDB's own memtables are not used. They take ten times the CPU time, with the GIL, because
each row is an object in Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

import numpy as np

from kvemb.contracts import Mask
from kvemb.limits import Limits
from kvemb.memory.budget import GrowingPart
from kvemb.rows.block import MEMORY_FLAGS, REMOVED, ReservedBlock, RowBlock
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.row_copies import copy_rows
from kvemb.rows.schema import Schema
from kvemb.threads.interrupts import result_of, uninterrupted

_FIRST_ROWS = 256
_KEPT_FLAGS = ~np.uint8(MEMORY_FLAGS)
# Smaller files cost more merges, and more files to search, than the memory of larger ones saves misses.
SMALL_FILE_BYTES = 1 << 20
# Bytes of a row beside its block: at most eight cells of an index made for twice the rows.
_INDEX_BYTES = 32


def row_bytes(schema: Schema) -> int:
    """Return the bytes of memory that a row takes at most."""
    return RowBlock.bytes_per_row(schema) + _INDEX_BYTES


class MemtableMemory(GrowingPart):
    """The part of the budget that the memtables of a store share. Thread-safe.

    A quarter of it is for rows that come while others are written: if unsealed rows take more than the rest, the
    largest memtable is sealed. A caller waits only if nothing is left. It grows while even the largest makes a small
    file, because many variables share it.
    """

    def __init__(self, total: int, most: int = 0, more: Callable[[int], bool] = lambda nbytes: False) -> None:
        super().__init__(total, most, more)
        self._sealed = 0
        self._holders: list[Memtables] = []

    def join(self, holder: Memtables) -> None:
        """Add the memtables of a variable."""
        with uninterrupted(), self.lock:
            self._holders.append(holder)

    def leave(self, holder: Memtables) -> None:
        """Remove the memtables of a variable, which have given back all that they took."""
        with uninterrupted(), self.lock:
            self._holders.remove(holder)

    def take(self, nbytes: int) -> None:
        """Take memory, after waiting for a write if there is not enough.

        If the write fails, or there is nothing to write just now, the memory is taken all the same.
        """
        failed = False
        while not self._taken(nbytes, although_full=failed):
            largest = self._largest(lambda holder: holder.nbytes)
            write = None if largest is None else largest.seal()
            failed = write is None or write.exception() is not None
        if self.used - self._sealed > self.total // 4 * 3:
            largest = self._largest(lambda holder: holder.open_bytes)
            if largest is not None and (open_bytes := largest.open_bytes):
                largest.seal()
                if open_bytes < SMALL_FILE_BYTES:
                    with uninterrupted(), self.lock:
                        self.grow()

    def _taken(self, nbytes: int, *, although_full: bool) -> bool:
        with uninterrupted(), self.lock:
            fits = although_full or not self.used or self.used + nbytes <= self.total
            self.used += nbytes if fits else 0
            return fits

    def _largest(self, size: Callable[[Memtables], int]) -> Memtables | None:
        with uninterrupted(), self.lock:
            return max(self._holders, key=size, default=None)

    def seal(self, nbytes: int) -> None:
        """Record that so many of the bytes are about to be written."""
        with uninterrupted(), self.lock:
            self._sealed += nbytes

    def give_back(self, nbytes: int, *, sealed: bool = False) -> None:
        """Give memory back. sealed: whether seal() was told of it."""
        with uninterrupted(), self.lock:
            self.used -= nbytes
            self._sealed -= nbytes if sealed else 0


class Memtable:
    """At most `most` rows, in the order in which they came; of a key's rows the last one counts.

    Rows are added until it is sealed, and found, with the variable's lock. A row that is here does not change. block:
    all rows, each where find() says.
    """

    def __init__(self, schema: Schema, most: int) -> None:
        self.rows, self.most, self.sealed = 0, most, False
        self.block = ReservedBlock(schema, most)
        self._index = KeyIndex(_FIRST_ROWS)

    def put(self, rows: RowBlock) -> None:
        """Add rows. REQUIRES: there is room."""
        start, stop = self.rows, self.rows + len(rows)
        self.block.put(slice(start, stop), rows)
        index = self._index
        if not index.has_room(len(rows)):
            index = KeyIndex(max(stop, min(2 * stop, self.most)))
            index.put(self.block.keys, 0, start)
        index.put(self.block.keys, start, stop)
        self._index, self.rows = index, stop

    def find(self, keys: Keys) -> Positions:
        """Return the position of each key's row (n,), -1 if it has none here."""
        return self._index.find(self.block.keys, keys)


class Memtables:
    """The memtables of one variable.

    memory: what all memtables of the store share. most_rows: of a memtable. executor: the one thread that writes to the
    cold store. write: called there with the rows of a memtable, in any order; of a key's rows the last one counts.
    forget_reads: called with the keys of rows that come, under the variable's lock, before the cold store can have
    them: what was read of them there no longer counts. failed: called with an error, on any thread; it poisons the
    store.

    REQUIRES the variable's lock for every method but seal(), which any thread may call. moves: how often rows came or
    were forgotten, other than by being written.
    """

    def __init__(
        self,
        schema: Schema,
        memory: MemtableMemory,
        most_rows: int,
        executor: Executor,
        write: Callable[[RowBlock], object],
        forget_reads: Callable[[Keys], None],
        failed: Callable[[BaseException], None],
        limits: Limits,
    ) -> None:
        self._schema, self._memory, self.executor = schema, memory, executor
        self._write, self.forget_reads, self._failed = write, forget_reads, failed
        self._row_bytes = row_bytes(schema)
        self._most = max(1, min(limits.memtable_rows, max(limits.batch_rows, most_rows)))
        self._part_rows = min(self._most, limits.batch_rows)
        # The newest first. It takes the rows that come; the others are being written, or could not be.
        self._tables: tuple[Memtable, ...] = ()
        self._changing, self._writing = threading.Lock(), threading.Lock()
        self._kept: list[RowBlock] = []  # the rows of an add() that failed, and of all later ones
        self._failure: BaseException | None = None
        self.moves = 0
        memory.join(self)

    @property
    def rows(self) -> int:
        """Rows that no file has, removals included. A key's rows count each."""
        return sum(table.rows for table in self._tables) + sum(map(len, self._kept))

    @property
    def nbytes(self) -> int:
        """Bytes of the memory that is paid for."""
        return sum(table.rows for table in self._tables) * self._row_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes of the memtable that is not sealed."""
        return sum(table.rows for table in self._tables[:1] if not table.sealed) * self._row_bytes

    def keys(self) -> Keys:
        """Return the keys of these rows; a key may come twice."""
        tables = (table.block.keys[: table.rows] for table in self._tables)
        return np.concatenate([np.empty(0, np.int64), *tables, *(rows.keys for rows in self._kept)])

    # Rows in and out.

    def add(self, blocks: list[RowBlock]) -> None:
        """Take over rows that left the hot tier, or removals (flagged REMOVED). May wait for memory.

        If this fails, these rows and those of later calls are kept in memory.
        """
        self.moves += 1
        if self._failure is not None:
            self._kept.extend(blocks)
            return
        try:
            for rows in blocks:
                self._add(rows)
        except BaseException as error:
            # All of them, also those already in a memtable: finding out which are could fail, too.
            self._kept.extend(blocks)
            self._failure = error
            self._failed(error)
            if not isinstance(error, Exception):
                raise

    def _add(self, rows: RowBlock) -> None:
        if len(rows):
            self.forget_reads(rows.keys)
        for at in range(0, len(rows), self._part_rows):
            part = rows.part(at, min(len(rows), at + self._part_rows))
            if (tables := self._tables) and tables[0].rows + len(part) > self._most:
                self.seal()
            nbytes = len(part) * self._row_bytes
            self._memory.take(nbytes)
            try:
                with uninterrupted(), self._changing:
                    if not self._tables or self._tables[0].sealed:
                        self._tables = (Memtable(self._schema, self._most), *self._tables)
                    self._tables[0].put(part)
            except BaseException:
                self._memory.give_back(nbytes)
                raise

    def has(self, keys: Keys) -> Mask:
        """Return which of distinct keys have their latest row, or its removal, here (n,)."""
        found = np.zeros(len(keys), np.bool_)
        for rows in self._kept:
            found |= np.isin(keys, rows.keys)
        for table in self._tables:
            found |= table.find(keys) >= 0
        return found

    def read(self, into: RowBlock, known: Mask, exists: Mask) -> None:
        """Copy the rows of into.keys that are here, and not known yet, to their positions; they are clean.

        Sets known at these positions, and exists to whether it is a row, not a removal.
        """
        for rows in reversed(self._kept):  # the latest first; dirty, because retry() drops those that are hot
            left = (~known).nonzero()[0]
            _, source, here = np.intersect1d(rows.keys, into.keys[left], assume_unique=True, return_indices=True)
            to = left[here]
            into.put(to, rows.select(source))
            known[to], exists[to] = True, rows.flags[source] & REMOVED == 0
        for table in self._tables:
            left = (~known).nonzero()[0]
            if len(left) == 0:
                return
            places = table.find(into.keys[left])
            here = (places >= 0).nonzero()[0]
            if len(here):
                to = left[here]
                copy_rows(table.block, places[here], into, to)
                flags = into.flags[to]
                known[to], exists[to], into.flags[to] = True, flags & REMOVED == 0, flags & _KEPT_FLAGS

    def retry(self, are_hot: Callable[[Keys], Mask]) -> None:
        """Go on after a failure: kept rows are added again, and what could not be written is written again.

        are_hot: says which of the kept rows are newer in the hot tier. If this fails, it is as if it had not been
        called.
        """
        kept = [rows.select(~are_hot(rows.keys)) for rows in self._kept]
        self._failure, self._kept = None, []
        self.add(kept)
        self.seal()

    def forget(self) -> None:
        """Forget every row. REQUIRES: paused()."""
        self.moves += 1
        with uninterrupted(), self._changing:
            for table in self._tables:
                self._memory.give_back(table.rows * self._row_bytes, sealed=table.sealed)
            self._tables, self._kept = (), []

    def end(self) -> None:
        """Forget every row, and leave the memory to others."""
        with self.paused():
            self.forget()
        self._memory.leave(self)

    # Writing.

    def seal(self) -> Future[None] | None:
        """Begin to write all rows that are here; return the write, or None if there is nothing to write.

        Rows that come later are in another file. It is written after all tasks that the executor gets before they are
        sealed. Older rows whose write failed are written again, first. Any thread may call this.
        """
        with uninterrupted():
            with self._changing:
                if not self._tables:
                    return None
                newest = self._tables[0]
                if not newest.sealed:
                    newest.sealed = True
                    self._memory.seal(newest.rows * self._row_bytes)
            return self.executor.submit(self._write_up_to, newest)

    def flush(self) -> None:
        """Write everything and wait for it. If a write fails, or has failed, raises its error; the rows stay."""
        self.check()
        if (last := self.seal()) is not None:
            result_of(last)

    def check(self) -> None:
        """Raise the error of add(), if one failed, so that rows are kept outside of memtables."""
        if self._failure is not None:
            raise self._failure

    def paused(self) -> threading.Lock:
        """A block in which nothing is written. It waits for the write in progress."""
        return self._writing

    def _write_up_to(self, newest: Memtable) -> None:
        """Write the oldest memtable and those that follow, up to this one. On the executor's thread.

        Later ones are left, even if they are sealed: a snapshot's file, or the copy of the cold database, may be due
        between them, and must not come after newer rows.
        """
        try:
            while self._write_oldest(newest):
                pass
        except BaseException as error:
            self._failed(error)
            raise

    def _write_oldest(self, newest: Memtable) -> bool:
        """Write one memtable; return whether more are to be written, up to the newest."""
        with self._writing:
            with self._changing:
                if newest not in self._tables:  # it was written, or forgotten
                    return False
                oldest = self._tables[-1]
            self._write(oldest.block.part(0, oldest.rows))
            with self._changing:
                # Not before its rows can be read elsewhere.
                self._tables = self._tables[:-1]
            self._memory.give_back(oldest.rows * self._row_bytes, sealed=True)
            return oldest is not newest
