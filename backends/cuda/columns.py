"""The keys, scores, flags and digests of a table's cells, read and set from the host a part at a time.

So this needs little memory on the device, and less if it is short. columns.cu has the kernels. Not thread-safe: the
table's caller locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.cells import NO_POSITIONS, NULL, Cells
from kvemb.backends.cuda.memory import CELLS
from kvemb.restrict import Scores
from kvemb.rows.hashing import Keys, Positions

# The number of buckets whose digests or flags are read at a time.
PART_BUCKETS = 8192
# The kernels' numbers of columns.
_DIGESTS, _FLAGS = 0, 1
_ALL_FLAGS = 0xFF


class Columns:
    """The columns of a table's cells. Methods REQUIRE that given cells (n,) are in use. All raise MemoryError."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self._buffers, self._chunks = cells, cells.buffers, cells.chunks

    # Of some cells.

    def keys(self, cells: Positions) -> Keys:
        """Return the keys of cells (n,)."""
        keys: Keys = self._read(cells, np.int64, 0)
        return keys

    def scores(self, cells: Positions) -> Scores:
        """Return the scores of cells (n,)."""
        scores: Scores = self._read(cells, np.float64, 1)
        return scores

    def flags(self, cells: Positions) -> npt.NDArray[np.uint8]:
        """Return the flags of cells (n,)."""
        flags: npt.NDArray[np.uint8] = self._read(cells, np.uint8, 2)
        return flags

    def _read(self, cells: Positions, dtype: Any, number: int) -> Any:
        """Return the keys (0), scores (1) or flags (2) of cells."""
        buffers, column = self._buffers, np.empty(len(cells), dtype)
        for part in buffers.parts(len(cells), cells=8, out=column.itemsize):
            n, outputs = part.stop - part.start, [NULL, NULL, NULL]
            outputs[number] = buffers.of("out", n * column.itemsize)
            self._cells.run("read_columns", n, buffers.put("cells", cells[part]), n, *outputs)
            column[part] = buffers.get(outputs[number], n, dtype)
        return column

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        """Set the scores of cells (n,); the rows become dirty."""
        if n := len(cells):
            self._cells.run("put_scores", n, self._buffers.put("cells", cells), n, self._buffers.put("values", scores))

    def change_flags(self, cells: Positions | None, where: int, *, keep: int, more: int = 0) -> None:
        """See contracts.HotTable."""
        buffers = self._buffers
        if cells is None:
            self._cells.run("change_all_flags", self._chunks.buckets * CELLS, where, keep & _ALL_FLAGS, more)
            return
        for part in buffers.parts(len(cells), cells=8):
            n = part.stop - part.start
            self._cells.run("change_flags", n, buffers.put("cells", cells[part]), n, where, keep & _ALL_FLAGS, more)

    # Of all cells.

    def occupied(self, first: int = 0, stop: int | None = None) -> Positions:
        """Return the cells in use from cell `first` to `stop` (excluded, None: the last), ascending."""
        stop = self._chunks.buckets * CELLS if stop is None else stop
        parts = self._bytes(_DIGESTS, first // CELLS, -(-stop // CELLS))
        cells = np.concatenate([NO_POSITIONS, *(at + np.flatnonzero(part) for at, part in parts)])
        return cells[(cells >= first) & (cells < stop)]

    def flagged(self, flag: int) -> Iterator[Positions]:
        """Yield the cells that have this flag, ascending, part by part of the table."""
        for at, part in self._bytes(_FLAGS, 0, self._chunks.buckets):
            yield at + np.flatnonzero(part & flag)

    def _bytes(self, column: int, first: int, stop: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the digests or the flags of buckets in parts, each with its first cell."""
        buffers = self._buffers
        size = buffers.fitting(min(PART_BUCKETS, stop - first) * CELLS, CELLS, out=1) // CELLS
        for start in range(first, stop, size):
            buckets = min(size, stop - start)
            out = buffers.of("out", buckets * CELLS)
            self._cells.run("read_bytes", buckets * CELLS, start, buckets, column, out)
            yield start * CELLS, buffers.get(out, buckets * CELLS, np.uint8)
