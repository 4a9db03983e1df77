"""External merge sort of rows: runs on disk, each in key order, merged as they are read.

For any number of rows it takes the memory of one run, and what NumPy needs to sort it. A run grows on disk as long as
keys ascend, so rows that are added in order are one run. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb.durability import layout
from kvemb.limits import DEFAULT, Limits
from kvemb.offline.merging import Stays, in_key_order, merged
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.rows.schema import Schema

# The fewest rows of a run read at a time: if the runs together need more than 64 MiB for that, memory grows with their
# number.
MIN_WINDOW = 64


class Sorter:
    """Takes rows in any order and returns them in key order, only one of equal keys. folder: of the runs.

    limits: sort_bytes of a run, scan_rows of a returned block. stays: which of equal keys; None: add() and blocks()
    raise EqualKeys. taken: how many rows were added.
    """

    def __init__(self, schema: Schema, folder: Path, limits: Limits = DEFAULT, stays: Stays = "last") -> None:
        self.folder, self._schema, self._limits, self._stays = folder, schema, limits, stays
        self.taken = 0
        columns = [("key", "<u8"), ("score", "<f8"), ("step", "<i8"), ("words", "<u8", (schema.row_words,))]
        self._layout = np.dtype(columns)
        self._waiting: list[RowBlock] = []
        self._runs: list[Path] = []
        self._last = -1  # the last key of the last run

    def add(self, block: RowBlock) -> None:
        """Add copies of rows."""
        if len(block) == 0:
            return
        self.taken += len(block)
        self._waiting.append(block.select(slice(None)))
        if sum(map(len, self._waiting)) * self._layout.itemsize >= self._limits.sort_bytes:
            self._write_run()

    def _sorted(self) -> RowBlock:
        """Return the rows that are in no run, and forget them."""
        waiting, self._waiting = self._waiting, []
        rows = in_key_order(RowBlock.joined(waiting, self._schema), self._stays, one_state=True)
        rows.flags[:] = 0
        return rows

    def _write_run(self) -> None:
        block = self._sorted()
        rows = np.empty(len(block), self._layout)
        rows["key"], rows["words"] = order_keys(block.keys, self._schema), block.words
        rows["score"], rows["step"] = block.scores, block.steps
        if not self._runs or int(rows["key"][0]) <= self._last:
            self._runs.append(self.folder / f"{len(self._runs)}.run")
        with layout.as_cold_store_error(f"write {self._runs[-1]}"), open(self._runs[-1], "ab") as file:
            rows.tofile(file)
        self._last = int(rows["key"][-1])

    def _read_run(self, path: Path, count: int) -> Iterator[RowBlock]:
        """Yield the rows of a run, `count` at a time. The file is open only meanwhile: there may be many runs."""
        at = 0
        while len(rows := np.fromfile(path, self._layout, count, offset=at * self._layout.itemsize)):
            at += len(rows)
            block = RowBlock(self._schema, len(rows))
            block.keys[:] = unordered_keys(np.ascontiguousarray(rows["key"]), self._schema)
            block.words[:], block.scores[:], block.steps[:] = rows["words"], rows["score"], rows["step"]
            yield block

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows, keys ascending. REQUIRES: called once, after all add()."""
        if self._runs and self._waiting:
            self._write_run()
        window = max(MIN_WINDOW, self._limits.sort_bytes // self._layout.itemsize // max(1, len(self._runs)))
        runs = [self._read_run(path, window // 2) for path in self._runs]
        sorted_runs = merged(runs, self._schema, window, self._stays, one_state=True)
        for rows in sorted_runs if runs else [self._sorted()]:
            for at in range(0, len(rows), self._limits.scan_rows):
                yield rows.part(at, min(at + self._limits.scan_rows, len(rows)))
