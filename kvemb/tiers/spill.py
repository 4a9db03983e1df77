"""Dirty rows on their way from the hot tier to the cold store.

Rows wait in slots, in the order in which they left the hot tier: a row that becomes hot again meanwhile is never
written. A slot that is full is written in the background while the next one is filled; more rows than the slots could
hold are written at once, and the caller waits. Rows stay readable here until the cold store has them.
A failure to write them, or to take them over, loses none and interrupts no call: they stay in memory, nothing more is
written, and the store is poisoned, until retry(). The variable's lock guards every method; the writing thread reads
only slots that do not change. There is little room, because the cold store keeps rows in memory until a file is worth
writing (backends/memtables.py); a slot only saves it calls with few rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.row_copies import copy_rows
from kvemb.rows.schema import Schema

# Slots of a buffer: one to fill and one to write.
SLOTS = 2
# Bytes per row beside its block: the live flag, and at most eight cells of an index made for twice the rows.
_INDEX_BYTES = 1 + 32
# Rows handed to the cold store at a time.
WRITE_ROWS = 16_384


def slot_bytes(schema: Schema, slot_rows: int) -> int:
    """Return the bytes of memory that a slot takes."""
    return slot_rows * (RowBlock.bytes_per_row(schema) + _INDEX_BYTES)


@dataclass(frozen=True)
class _Write:
    """Slots that are being written. done: its result is the keys of the rows that were live in them."""

    slots: list[int]
    done: Future[Keys]


class SpillBuffer:
    """Rows that wait to be written, at most one per key, in `slots` slots of slot_rows rows each.

    write: puts rows into the cold store, on a thread of `executor`, one call at a time. written: called under the lock
    with the keys of rows that the cold store has taken and that leave memory. failed: called under the lock with the
    first error, which poisons the store. moves: how often rows came or left, other than by `written`.
    """

    def __init__(
        self,
        schema: Schema,
        slot_rows: int,
        executor: Executor,
        write: Callable[[RowBlock], None],
        written: Callable[[Keys], None],
        failed: Callable[[BaseException], None],
        slots: int = SLOTS,
    ) -> None:
        self._schema, self._slot_rows = schema, slot_rows
        self._executor, self._write, self._written, self._failed = executor, write, written, failed
        self._block = RowBlock(schema, slots * slot_rows)
        self._free = list(range(slots))
        self._live = np.zeros(len(self._block), np.bool_)
        self._index = KeyIndex(slot_rows)
        self._held: deque[int] = deque()  # the oldest first; the last one is being filled
        self._filled = slot_rows  # rows in the last one
        self._writes: deque[_Write] = deque()  # of the oldest slots, in order; one runs, the others wait
        self._failure: BaseException | None = None
        self.moves = 0
        self._kept: list[RowBlock] = []  # the rows of an append that failed, and of all later ones

    @property
    def rows(self) -> int:
        """Rows that wait or are being written, removals included."""
        return int(self._live.sum()) if not self._kept else len(np.unique(self.keys()))

    def keys(self) -> Keys:
        """Return the keys of these rows, removals included; a key may come twice."""
        return np.concatenate([self._block.keys[self._live], *(rows.keys for rows in self._kept)])

    @property
    def writing(self) -> bool:
        """Whether slots are being written."""
        return bool(self._writes)

    # Rows in and out.

    def append(self, blocks: list[RowBlock]) -> None:
        """Take over rows that left the hot tier, or removals (flagged REMOVED). Waits if no slot is available.

        If this fails, these rows and those of later calls are kept in memory.
        """
        self.moves += 1
        if self._failure is not None:
            self._kept.extend(blocks)
            return
        try:
            for rows in blocks:
                self._append(rows)
        except BaseException as error:
            # All of them, also those already in a slot: finding out which are could fail, too.
            self._kept.extend(blocks)
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _append(self, rows: RowBlock) -> None:
        self.discard(rows.keys)
        if len(rows) > len(self._block):
            self._write_through(rows)
            return
        at = 0
        while at < len(rows):
            if self._filled == self._slot_rows:
                self._begin_slot()
            stop = min(len(rows), at + self._slot_rows - self._filled)
            self._put(rows.part(at, stop))
            at = stop

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._failed(error)

    def retry(self, are_hot: Callable[[Keys], Mask]) -> None:
        """Go on after a failure: rows whose write failed wait again, and kept rows are taken over again.

        are_hot: says which of the kept rows are newer in the hot tier. A write may have failed without that any call
        noticed. If this fails, it is as if it had not been called.
        """
        self.moves += 1
        for write in self._writes:
            with suppress(Exception):
                write.done.result()  # no longer runs
        self._index, self._filled = self._new_index(), self._slot_rows
        kept = [rows.select(~are_hot(rows.keys)) for rows in self._kept]
        while self._writes and self._writes[0].done.exception() is None:
            self._finish()
        self._writes.clear()
        self._failure, self._kept = None, []
        self.append(kept)

    def _write_through(self, rows: RowBlock) -> None:
        """Write rows for which there are too few slots, all at once, and wait for it; they enter no slot.

        They follow the writes in progress, which may have earlier rows of their keys.
        """
        before = self._writes[-1].done if self._writes else None
        done = self._executor.submit(self._write_after, before, rows, np.arange(len(rows)))
        self._written(done.result())

    def _put(self, rows: RowBlock) -> None:
        start = self._held[-1] * self._slot_rows + self._filled
        stop = start + len(rows)
        if not self._index.has_room(len(rows)):
            self._index = self._new_index()
        self._block.put(slice(start, stop), rows)
        self._index.put(self._block.keys, start, stop)
        self._live[start:stop] = True
        self._filled += len(rows)

    def _new_index(self) -> KeyIndex:
        """Return an index of the live rows only, made for twice as many rows, a slot included."""
        live = self._live.nonzero()[0]
        index = KeyIndex(2 * (len(live) + self._slot_rows))
        index.put_at(self._block.keys, live)
        return index

    def _find(self, keys: Keys) -> Positions:
        """Return the position of each key's row in the block, -1 if it is not here."""
        if not self._held:
            return np.full(len(keys), -1, np.int64)
        return self._index.find(self._block.keys, keys, self._live)

    def read(self, keys: Keys, into: RowBlock) -> tuple[np.ndarray, np.ndarray]:
        """Copy the rows of distinct keys that are here to the same positions of `into`.

        Returns known (n,) bool: whether the key's latest row or its removal is here; exists (n,) bool: whether it is a
        row.
        """
        exists = np.zeros(len(keys), np.bool_)
        if not self._held and not self._kept:
            return exists.copy(), exists
        known = (positions := self._find(keys)) >= 0
        if np.count_nonzero(known):
            source = positions[known]
            copy_rows(self._block, source, into, np.flatnonzero(known))
            exists[known] = self._block.flags[source] & REMOVED == 0
        for rows in self._kept:  # from the oldest to the latest
            _, source, wanted = np.intersect1d(rows.keys, keys, assume_unique=True, return_indices=True)
            into.put(wanted, rows.select(source))
            known[wanted], exists[wanted] = True, rows.flags[source] & REMOVED == 0
        return known, exists

    def discard(self, keys: Keys) -> None:
        """Forget rows by key, because they are hot again or superseded. Rows that are being written are still written.

        Rows that a failed append() kept stay; hot rows, and rows appended later, take precedence over them.
        """
        self.moves += 1
        if self._held:
            positions = self._find(keys)
            self._live[positions[positions >= 0]] = False

    def clear(self) -> None:
        """Forget every row, after the writes in progress have ended."""
        self.moves += 1
        self.wait_for_write()
        for slot in self._held:
            self._release(slot)
        self._held.clear()
        self._filled = self._slot_rows

    # Slots.

    def _begin_slot(self) -> None:
        """Begin a new slot; start to write the oldest one if none is left. Raises a write's error."""
        self._finish_done()
        if not self._free:
            if not self._writes:
                self._start_write(self._oldest())
            self._finish()
        self._held.append(self._free.pop())
        self._filled = 0
        if not (self._writes or self._free):
            self._start_write(self._oldest())

    def _oldest(self) -> int:
        """Return how many slots are written at a time."""
        return max(1, len(self._held) // 2)

    def _release(self, slot: int) -> None:
        self._live[slot * self._slot_rows : (slot + 1) * self._slot_rows] = False
        self._free.append(slot)

    # Writing.

    def poll(self) -> None:
        """Release slots that were written."""
        if self._failure is None:
            try:
                self._finish_done()
            except Exception as error:
                self._fail(error)

    def drain(self) -> None:
        """Write everything and wait for it. If a write fails, or has failed, raises its error and keeps the rows."""
        self.start_write()
        self.wait_for_write()

    def start_write(self) -> Future[Keys] | None:
        """Start to write everything that is here; return the last write, or None if there is none.

        The last write fails if an earlier one does. Does not wait for writes in progress. There are several writes, so
        that slots become free one after the other. Raises the error of a write that has failed.
        """
        self._finish_done()
        most = self._oldest()
        while left := len(self._held) - self._slots_in_writes():
            self._start_write(min(most, left))
        return self._writes[-1].done if self._writes else None

    def wait_for_write(self) -> None:
        """Wait until all writes in progress have ended. Raises the first error."""
        self._check()
        while self._writes:
            self._finish()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _slots_in_writes(self) -> int:
        return sum(len(write.slots) for write in self._writes)

    def _start_write(self, count: int) -> None:
        """Start to write the rows that are live now in the oldest slots that are in no write yet."""
        begin = self._slots_in_writes()
        slots = list(islice(self._held, begin, begin + count))
        if begin + count == len(self._held):
            self._filled = self._slot_rows  # later rows go to another slot
        live = self._live.reshape(-1, self._slot_rows)[slots]
        before = self._writes[-1].done if self._writes else None
        self._writes.append(_Write(slots, self._executor.submit(self._write_slots, slots, live, before)))

    def _write_slots(self, slots: list[int], live: npt.NDArray[np.bool_], before: Future[Keys] | None) -> Keys:
        """Write the live rows of slots, (slots, slot_rows); returns their keys.

        before: the previous write; if it failed, this one fails, too.
        """
        places = (np.array(slots)[:, None] * self._slot_rows + np.arange(self._slot_rows))[live]
        return self._write_after(before, self._block, places)

    def _write_after(self, before: Future[Keys] | None, block: RowBlock, places: Positions) -> Keys:
        """Write the rows at places of a block; returns their keys. before: see _write_slots."""
        if before is not None and (error := before.exception()) is not None:
            raise error
        for start in range(0, len(places), WRITE_ROWS):
            self._write(block.select(places[start : start + WRITE_ROWS]))
        return block.keys[places]

    def _finish_done(self) -> None:
        self._check()
        while self._writes and self._writes[0].done.done():
            self._finish()

    def _finish(self) -> None:
        """Wait for the oldest write, and release its slots. If it failed, raises its error and keeps the rows."""
        write = self._writes[0]
        self._written(write.done.result())
        for slot in write.slots:
            self._held.popleft()
            self._release(slot)
        self._writes.popleft()
