"""The methods of the hot table on a GPU that read and set columns of its cells: keys, scores, flags and digests.

They copy a part at a time, so they need little memory on the device, and less if it is short. columns.cu has the
kernels. Not thread-safe: the caller holds the variable's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvemb.backends.cuda.cells import NO_POSITIONS, NULL, Cells
from kvemb.backends.cuda.memory import CELLS
from kvemb.contracts import Flags, HotTable
from kvemb.restrict import Scores
from kvemb.rows.hashing import Keys, Positions

# The number of buckets whose digests or flags are read at a time.
PART_BUCKETS = 8192
# The kernels' numbers of columns.
_DIGESTS, _FLAGS = 0, 1
_ALL_FLAGS = 0xFF


class CellColumns(HotTable):
    """The part of CudaTable that is about columns. cells: its cells."""

    def __init__(self, cells: Cells) -> None:
        self.cells, self._chunks, self._buffers, self._run = cells, cells.chunks, cells.buffers, cells.run

    # Of some cells.

    def keys(self, cells: Positions | None = None) -> Keys:
        keys: Keys = self._read_column(self.occupied() if cells is None else cells, np.int64, 0)
        return keys

    def scores(self, cells: Positions) -> Scores:
        scores: Scores = self._read_column(cells, np.float64, 1)
        return scores

    def flags(self, cells: Positions) -> Flags:
        flags: Flags = self._read_column(cells, np.uint8, 2)
        return flags

    def _read_column(self, cells: Positions, dtype: Any, number: int) -> Any:
        """Return the keys (0), scores (1) or flags (2) of cells."""
        buffers, column = self._buffers, np.empty(len(cells), dtype)
        for part in buffers.parts(len(cells), cells=8, out=column.itemsize):
            n, outputs = part.stop - part.start, [NULL, NULL, NULL]
            outputs[number] = buffers.of("out", n * column.itemsize)
            self._run("read_columns", n, buffers.put("cells", cells[part]), n, *outputs)
            column[part] = buffers.get(outputs[number], n, dtype)
        return column

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        if n := len(cells):
            self._run("put_scores", n, self._buffers.put("cells", cells), n, self._buffers.put("values", scores))

    def change_flags(self, cells: Positions | None, where: int, *, keep: int, more: int = 0) -> None:
        buffers = self._buffers
        if cells is None:
            self._run("change_all_flags", self.capacity_rows, where, keep & _ALL_FLAGS, more)
            return
        for part in buffers.parts(len(cells), cells=8):
            n = part.stop - part.start
            self._run("change_flags", n, buffers.put("cells", cells[part]), n, where, keep & _ALL_FLAGS, more)

    # Of all cells.

    def occupied(self, first: int = 0, stop: int | None = None) -> Positions:
        """Return the cells in use from cell `first` to `stop` (excluded, None: the last), ascending."""
        stop = self.capacity_rows if stop is None else stop
        parts = self._bytes(_DIGESTS, first // CELLS, -(-stop // CELLS))
        cells = np.concatenate([NO_POSITIONS, *(at + np.flatnonzero(part) for at, part in parts)])
        return cells[(cells >= first) & (cells < stop)]

    def flagged(self, flag: int) -> Iterator[Positions]:
        for at, part in self._bytes(_FLAGS, 0, self._chunks.buckets):
            yield at + np.flatnonzero(part & flag)

    def sample(self, at: float, count: int) -> tuple[Keys, Scores]:
        # Takes consecutive cells, a random sample because the hash mixes the keys.
        count = min(count, self.capacity_rows)
        start = int(at * (self.capacity_rows - count))
        cells = self.occupied(start, start + count)
        return self.keys(cells), self.scores(cells)

    def _bytes(self, column: int, first: int, stop: int) -> Iterator[tuple[int, Flags]]:
        """Yield the digests or the flags of buckets in parts, each with its first cell."""
        buffers = self._buffers
        size = buffers.fitting(min(PART_BUCKETS, stop - first) * CELLS, CELLS, out=1) // CELLS
        for start in range(first, stop, size):
            buckets = min(size, stop - start)
            out = buffers.of("out", buckets * CELLS)
            self._run("read_bytes", buckets * CELLS, start, buckets, column, out)
            yield start * CELLS, buffers.get(out, buckets * CELLS, np.uint8)
