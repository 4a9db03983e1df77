"""The hot table on the CPU: buckets of 16 cells over a RowBlock, with eviction by lowest score.

Cells are reserved for the largest size as address space and given to the process only as the table doubles into them.
Not thread-safe: the tier's lock guards it; a large batch is split over the machine's cores within a call. The layout
is described in cpu_probe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from kvemb.backends import cpu_insert, cpu_probe
from kvemb.backends.cpu_rows import CpuRows
from kvemb.restrict import ScoreRule
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.schema import Schema

# A batch of this many keys or more is worth a thread a core: a hand-over costs about what 1,000 keys do.
PARALLEL_KEYS = 16_384


class CpuTable(CpuRows):
    """contracts.HotTable in NumPy memory.

    capacity_rows: cells now, a multiple of 16, at most max_capacity_rows.
    """

    cells_per_bucket = cpu_probe.CELLS

    def __init__(self, schema: Schema, capacity_rows: int, max_capacity_rows: int) -> None:
        self._buckets = max(1, -(-capacity_rows // cpu_probe.CELLS))
        most = max(self._buckets, max_capacity_rows // cpu_probe.CELLS)
        self.max_capacity_rows = most * cpu_probe.CELLS
        self.block = RowBlock(schema, self.max_capacity_rows)
        self._digests = RowBlock.column(self.max_capacity_rows, np.uint8)
        self._tags = self._digests.view(np.uint64)
        self.size = 0

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        """Bytes of memory one cell takes."""
        return RowBlock.bytes_per_row(schema) + 1

    @property
    def capacity_rows(self) -> int:
        """Cells now."""
        return self._buckets * cpu_probe.CELLS

    @property
    def nbytes(self) -> int:
        """Bytes of memory its cells take now."""
        return self.capacity_rows * self.bytes_per_cell(self.block.schema)

    def find(self, keys: Keys) -> Positions:
        """See contracts.HotTable."""
        cells = np.empty(len(keys), np.int64)
        cpu_probe.find(keys, self._buckets, self._tags, self.block.keys, cells)
        return cells

    def lookup(self, keys: Keys, out: Any, rule: ScoreRule | None, now: float) -> Positions:
        """See contracts.HotTable."""
        block, n = self.block, len(keys)
        cells = np.empty(n, np.int64)
        how = cpu_probe.NO_TOUCH if rule is None or rule is ScoreRule.CUSTOM else int(rule)
        seen = out.view(block.schema.kernel_dtype)

        def read(start: int, stop: int, shared: bool) -> None:
            cpu_probe.lookup(
                keys, start, stop, self._buckets, self._tags, block.keys, block.values, seen, block.schema.dim,
                how, now, shared, block.scores, block.flags, cells,
            )  # fmt: skip

        if _worth_threads(n):
            _in_parts(lambda part, parts: read(n * part // parts, n * (part + 1) // parts, shared=True))
        else:
            read(0, n, shared=False)
        return cells

    def upsert(self, keys: Keys, values: Any, step: int) -> Positions:
        """See contracts.HotTable."""
        block, cells = self.block, np.empty(len(keys), np.int64)
        seen = values.view(block.schema.kernel_dtype)

        def part(number: int, parts: int) -> None:
            cpu_probe.upsert(
                keys, number, parts, self._buckets, self._tags, block.keys, block.values, seen, block.schema.dim,
                step, block.steps, block.flags, cells,
            )  # fmt: skip

        if _worth_threads(len(keys)):
            _in_parts(part)
        else:
            part(0, 1)
        return cells

    def insert(
        self, rows: RowBlock, *, by_score: bool = False, reserve: Callable[[int], bool] | None = None
    ) -> RowBlock:
        """See contracts.HotTable. Doubles when a key finds both of its buckets full, at about nine tenths of the
        cells.
        """
        left = RowBlock(self.block.schema, len(rows))
        at, count = self._insert(rows, 0, left, 0, by_score, evicting=False)
        while at < len(rows):
            may_grow = reserve is not None and 2 * self.capacity_rows <= self.max_capacity_rows
            growing = may_grow and 2 * self.size > self.capacity_rows and reserve is not None and reserve(self.nbytes)
            if growing:
                self.grow()
            at, count = self._insert(rows, at, left, count, by_score, evicting=not growing)
        return left.part(0, count)

    def _insert(
        self, rows: RowBlock, start: int, left: RowBlock, count: int, by_score: bool, *, evicting: bool
    ) -> tuple[int, int]:
        block = self.block
        stopped, count, used = cpu_insert.insert(
            self._buckets, self._tags, self._digests,
            block.keys, block.scores, block.steps, block.flags, block.words,
            start, rows.keys, rows.scores, rows.steps, rows.flags, rows.words, by_score, evicting,
            count, left.keys, left.scores, left.steps, left.flags, left.words,
        )  # fmt: skip
        self.size += used
        return stopped, count

    def remove(self, cells: Positions) -> None:
        """See contracts.HotTable."""
        self.size -= cpu_insert.remove(cells, self._digests, self.block.flags)

    def clear(self) -> None:
        """See contracts.HotTable."""
        self._digests[: self.capacity_rows] = 0
        self.block.flags[: self.capacity_rows] = 0
        self.size = 0

    def grow(self) -> None:
        """See contracts.HotTable."""
        if 2 * self.capacity_rows > self.max_capacity_rows:
            raise ValueError(f"a table of {self.capacity_rows} cells cannot double past {self.max_capacity_rows}")
        block = self.block
        cpu_insert.double(self._buckets, self._digests, block.keys, block.scores, block.steps, block.flags, block.words)
        self._buckets *= 2

    def dirty_batches(self, limit: int) -> Iterator[tuple[Positions, RowBlock]]:
        """See contracts.HotTable."""
        cells = np.empty(limit, np.int64)
        at = 0
        while at < self.capacity_rows:
            count, at = cpu_insert.dirty_cells(self.block.flags, at, self.capacity_rows, limit, cells)
            if count:
                found = cells[:count].copy()
                yield found, self.block.select(found)

    def occupied(self) -> Positions:
        """See contracts.HotTable."""
        return np.flatnonzero(self._digests[: self.capacity_rows])


def _worth_threads(keys: int) -> bool:
    return keys >= PARALLEL_KEYS and _cores() > 1


def _in_parts(part: Callable[[int, int], None]) -> None:
    """Run part(number, parts) for every number, on all cores.

    There are more parts than cores, a power of two, and each thread takes the next, so that a core busy elsewhere does
    not hold up the rest.
    """
    parts = 2 << (_cores() - 1).bit_length()
    numbers = iter(range(parts))

    def run() -> None:
        for number in numbers:
            part(number, parts)

    others = [_pool().submit(run) for _ in range(_cores() - 1)]
    run()
    for other in others:
        if not other.cancel():
            other.result()


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="kvemb-cpu")
