"""What dirty rows and a snapshot's rows mean, for every hot table: written once, over the flags of its cells.

A snapshot marks dirty rows PENDING and, once it has taken them, WRITING (kvemb.tiers.snapshot). A row that leaves
keeps its marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvemb.rows.block import DIRTY, PENDING, SNAPSHOT_FLAGS, WRITING, RowBlock
from kvemb.rows.hashing import Keys, Positions

Flags = npt.NDArray[np.uint8]
_MARKS = int(SNAPSHOT_FLAGS)


class MarkedRows(Protocol):
    """A hot table's rows and their flags (kvemb.rows.block). Its methods raise MemoryError before anything changed.

    Where a method takes cells (n,), entries < 0 are skipped, unless it says otherwise.
    """

    # What a hot table implements.

    def keys(self, cells: Positions | None = None) -> Keys:
        """Return the keys of cells, which are all in use; None: of all rows, in the order of their cells."""

    def read(self, cells: Positions) -> RowBlock:
        """Return the whole rows in cells, which are all in use, in that order."""

    def flags(self, cells: Positions) -> Flags:
        """Return the flags of cells, which are all in use."""

    def flagged(self, flag: int) -> Iterator[Positions]:
        """Yield the cells whose rows have a flag, ascending, part by part of the table."""

    def change_flags(self, cells: Positions | None, where: int, *, keep: int, more: int = 0) -> None:
        """For cells that have one of the bits `where`, clear all bits but `keep`, then set the bits `more`.

        cells are all in use; None: all cells of the table.
        """

    # Dirty rows, and rows marked by a snapshot.

    def dirty_batches(self, limit: int) -> Iterator[tuple[Positions, RowBlock]]:
        """Yield the cells and copies of the dirty rows, at most `limit` at a time, in the order of cells."""
        for dirty in self.flagged(DIRTY):
            for at in range(0, len(dirty), limit):
                cells = dirty[at : at + limit]
                cells = cells[self.flags(cells) & DIRTY != 0]  # rows that were taken since are clean
                if len(cells):
                    yield cells, self.read(cells)

    def mark_clean(self, cells: Positions) -> None:
        """Mark the rows in cells, which are all in use, as clean: the cold store has them as they are."""
        self.change_flags(cells, DIRTY, keep=~DIRTY)

    def mark_dirty_pending(self) -> Keys:
        """Mark every dirty row PENDING; return their keys."""
        parts = [self.keys(dirty) for dirty in self.flagged(DIRTY)]
        self.change_flags(None, DIRTY, keep=~0, more=PENDING)
        return np.concatenate(parts)

    def release_pending(self, cells: Positions) -> RowBlock:
        """Clear all marks of the rows in cells, which are about to change; return, once each, those that were PENDING.

        Raises MemoryError; then nothing has changed.
        """
        cells = cells[cells >= 0]
        marked = np.unique(cells[self.flags(cells) & _MARKS != 0])
        pending = self.read(marked[self.flags(marked) & PENDING != 0])
        self.change_flags(marked, _MARKS, keep=~_MARKS)
        return pending

    def take_pending(self, cells: Positions) -> tuple[Positions, RowBlock]:
        """Mark the PENDING rows in distinct cells WRITING; return their positions in cells, and the rows."""
        hot = np.flatnonzero(cells >= 0)
        positions = hot[self.flags(cells[hot]) & PENDING != 0]
        taken = self.read(cells[positions])
        self.change_flags(cells[positions], PENDING, keep=~PENDING, more=WRITING)
        return positions, taken

    def mark_written(self, cells: Positions) -> None:
        """Make the rows in cells that are still marked WRITING clean, and clear the mark."""
        self.change_flags(cells[cells >= 0], WRITING, keep=~(WRITING | DIRTY))

    def release_all(self) -> None:
        """Clear all marks of all rows."""
        self.change_flags(None, _MARKS, keep=~_MARKS)
