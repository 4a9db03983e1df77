"""External merge sort of rows: runs on disk, each in key order, merged as they are read.

For any number of rows it takes the memory of one run, and what NumPy needs to sort it. A run grows on disk as long as
keys ascend, so rows that are added in order are one run. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.durability import layout
from kvemb.limits import DEFAULT, Limits
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys, unordered_keys
from kvemb.rows.schema import Schema

# The fewest rows of a run read at a time: if the runs together need more than 64 MiB for that, memory grows with their
# number.
MIN_WINDOW = 64


class Sorter:
    """Takes rows in any order and returns them in key order, only the last of equal keys. folder: of the runs.

    limits: sort_bytes of a run, scan_rows of a returned block.
    """

    def __init__(self, schema: Schema, folder: Path, limits: Limits = DEFAULT) -> None:
        self.folder, self._schema, self._limits = folder, schema, limits
        columns = [("key", "<u8"), ("score", "<f8"), ("step", "<i8"), ("words", "<u8", (schema.row_words,))]
        self._layout = np.dtype(columns)
        self._waiting: list[npt.NDArray[Any]] = []
        self._runs: list[Path] = []
        self._last = -1  # the last key of the last run

    def add(self, block: RowBlock) -> None:
        """Add rows."""
        if len(block) == 0:
            return
        rows = np.empty(len(block), self._layout)
        rows["key"], rows["words"] = order_keys(block.keys, self._schema), block.words
        rows["score"], rows["step"] = block.scores, block.steps
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) * self._layout.itemsize >= self._limits.sort_bytes:
            self._write_run()

    def _write_run(self) -> None:
        rows = _last_of_each(self._waiting)
        if not self._runs or int(rows["key"][0]) <= self._last:
            self._runs.append(self.folder / f"{len(self._runs)}.run")
        with layout.as_cold_store_error(f"write {self._runs[-1]}"), open(self._runs[-1], "ab") as file:
            rows.tofile(file)
        self._last = int(rows["key"][-1])
        self._waiting = []

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows, keys ascending. REQUIRES: called once, after all add()."""
        for rows in self._merged() if self._runs else [_last_of_each(self._waiting)] if self._waiting else []:
            for at in range(0, len(rows), self._limits.scan_rows):
                yield self._block(rows[at : at + self._limits.scan_rows])

    def _merged(self) -> Iterator[npt.NDArray[Any]]:
        """Merge the runs: each round yields all keys up to the smallest of the last keys read from the runs."""
        if self._waiting:
            self._write_run()
        size = self._layout.itemsize
        left = [path.stat().st_size // size for path in self._runs]
        read = [0] * len(left)
        window = max(MIN_WINDOW, self._limits.sort_bytes // size // len(left))
        heads = [np.empty(0, self._layout)] * len(left)
        while True:
            for run, path in enumerate(self._runs):
                if len(heads[run]) < window // 2 and left[run]:
                    count = min(window, left[run])
                    more = np.fromfile(path, self._layout, count, offset=read[run] * size)
                    heads[run] = np.concatenate([heads[run], more])
                    read[run] += count
                    left[run] -= count
            if not any(map(len, heads)):
                return
            ends = [head["key"][-1] for head, more in zip(heads, left, strict=True) if more]
            stops = [len(head) if not ends else int(np.searchsorted(head["key"], min(ends), "right")) for head in heads]
            parts = [head[:stop] for head, stop in zip(heads, stops, strict=True)]
            heads = [head[stop:] for head, stop in zip(heads, stops, strict=True)]
            yield _last_of_each(parts)

    def _block(self, rows: npt.NDArray[Any]) -> RowBlock:
        block = RowBlock(self._schema, len(rows))
        block.keys[:] = unordered_keys(np.ascontiguousarray(rows["key"]), self._schema)
        block.words[:], block.scores[:], block.steps[:] = rows["words"], rows["score"], rows["step"]
        return block


def _last_of_each(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return rows in key order, only the last of equal keys."""
    rows = np.concatenate(parts)
    if (rows["key"][1:] <= rows["key"][:-1]).any():
        rows = rows[np.argsort(rows["key"], kind="stable")]
        last = np.ones(len(rows), np.bool_)
        last[:-1] = rows["key"][1:] != rows["key"][:-1]
        rows = rows[last]
    return rows
