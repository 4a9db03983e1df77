"""Dirty rows on their way from the hot tier to the cold store.

Evicted rows gather in a pile. A full pile is frozen and written in the background, in one large sorted batch, while the
next one fills. Rows stay readable here until the cold store has taken them. The variable's lock guards every method;
the writing thread reads the frozen pile, which nobody changes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future

import numpy as np

from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.hashing import KeyIndex, Keys, Positions
from kvemb.rows.schema import Schema

# Rows that are moved at a time where a pile is compacted.
MOVE_ROWS = 1024


class Pile:
    """Up to `capacity` rows with distinct live keys, and where each key stands."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self.block = RowBlock(schema, capacity)
        self.live = np.zeros(capacity, np.bool_)
        self.count = 0
        self._index = KeyIndex(capacity)

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return len(self.block) - self.count

    def append(self, rows: RowBlock) -> None:
        """Add rows; a key that is here already is superseded."""
        self.discard(rows.keys)
        start, stop = self.count, self.count + len(rows)
        self.block.put(slice(start, stop), rows)
        self.live[start:stop] = True
        self._index.put(self.block.keys, start, stop)
        self.count = stop

    def find(self, keys: Keys) -> Positions:
        """Return each key's position, -1 if it is not live here."""
        if self.count == 0:
            return np.full(len(keys), -1, np.int64)
        positions = self._index.find(self.block.keys, keys)
        positions[(positions >= 0) & ~self.live[positions]] = -1
        return positions

    def discard(self, keys: Keys) -> None:
        """Forget rows by key; others are ignored."""
        positions = self.find(keys)
        self.live[positions[positions >= 0]] = False

    def enlarged(self, more: int) -> Pile:
        """Return a pile of the same rows with room for `more`."""
        rows = self.compacted()
        larger = Pile(self.block.schema, len(rows) + more)
        larger.append(rows)
        return larger

    def compacted(self) -> RowBlock:
        """Move the live rows together, in place, and return a view of them: a copy would double a pile's memory."""
        live = np.flatnonzero(self.live[: self.count])
        if len(live) < self.count:
            for start in range(0, len(live), MOVE_ROWS):
                part = live[start : start + MOVE_ROWS]
                self.block.put(slice(start, start + len(part)), self.block.select(part))
            self.live[: len(live)], self.live[len(live) : self.count] = True, False
            self.count = len(live)
            self._index.clear()
            self._index.put(self.block.keys, 0, self.count)
        return self.block.part(0, self.count)

    def clear(self) -> None:
        """Forget every row."""
        self.live[: self.count] = False
        self.count = 0
        self._index.clear()


class SpillBuffer:
    """Two piles that take turns.

    write: puts rows into the cold store, on a thread of `executor`, one call at a time.
    written: called with the keys of a frozen pile when its rows are in the cold store and leave memory, under the lock.
    """

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        executor: Executor,
        write: Callable[[RowBlock], None],
        written: Callable[[Keys], None],
    ) -> None:
        self._active, self._spare = Pile(schema, capacity_rows), Pile(schema, capacity_rows)
        self._frozen: Pile | None = None
        self._writing: Future[None] | None = None
        self._executor, self._write, self._written = executor, write, written

    @property
    def rows(self) -> int:
        """Rows that wait or are being written, removals included."""
        return int(self._active.live.sum()) + (int(self._frozen.live.sum()) if self._frozen else 0)

    def append(self, blocks: list[RowBlock]) -> None:
        """Take over rows that left the hot tier, or removals (flagged REMOVED). Waits when both piles are full.

        When a write fails its error is raised, and these rows are kept all the same.
        """
        failure: Exception | None = None
        for rows in blocks:
            at = 0
            while at < len(rows):
                if self._active.room == 0:
                    try:
                        self._freeze()
                    except Exception as error:
                        failure = error
                        self._active = self._active.enlarged(len(rows) - at)
                stop = min(len(rows), at + self._active.room)
                self._active.append(rows.part(at, stop))
                at = stop
        if failure is not None:
            raise failure

    def read(self, keys: Keys, into: RowBlock) -> tuple[np.ndarray, np.ndarray]:
        """Copy the rows of keys that are here to the same positions of `into`.

        Returns known (n,) bool: the key's latest row is here, or its removal; and exists (n,) bool: it is a row.
        """
        known, exists = np.zeros(len(keys), np.bool_), np.zeros(len(keys), np.bool_)
        for pile in (self._active, self._frozen):
            if pile is None or pile.count == 0:
                continue
            positions = pile.find(keys)
            fresh = np.flatnonzero((positions >= 0) & ~known)
            if len(fresh):
                source = positions[fresh]
                into.put(fresh, pile.block.select(source))
                known[fresh] = True
                exists[fresh] = pile.block.flags[source] & REMOVED == 0
        return known, exists

    def discard(self, keys: Keys) -> None:
        """Forget rows that are back in the hot tier, where they are dirty. A frozen pile is written all the same."""
        self._active.discard(keys)

    def poll(self) -> None:
        """Release the frozen pile if its rows are in the cold store. Raises the error of its write."""
        if self._writing is not None and self._writing.done():
            self._finish()

    def drain(self) -> None:
        """Write everything and wait for it. Raises the error of a write; then the rows stay here."""
        self.wait_for_write()
        if self._active.count:
            self._freeze()
            self._finish()

    def start_write(self) -> Future[None] | None:
        """Begin to write everything that is here; returns what to wait for, None when there is nothing.

        Waits itself only where a pile is being written already. Raises the error of that write.
        """
        if self._active.count:
            self._freeze()
        return self._writing

    def wait_for_write(self) -> None:
        """Wait until a write under way has ended. Raises its error."""
        if self._writing is not None:
            self._finish()

    def clear(self) -> None:
        """Forget every row, after a write under way has ended."""
        self.wait_for_write()
        self._active.clear()

    def _freeze(self) -> None:
        self.wait_for_write()
        self._writing = self._executor.submit(self._write, self._active.compacted())
        self._frozen, self._active = self._active, self._spare

    def _finish(self) -> None:
        assert self._frozen is not None
        assert self._writing is not None
        self._writing.result()
        self._written(self._frozen.block.keys[: self._frozen.count])
        self._frozen.clear()
        self._spare, self._frozen, self._writing = self._frozen, None, None
