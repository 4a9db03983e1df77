"""The hot table on a GPU: buckets of 128 cells in device memory, with eviction by lowest score.

Arguments and results are arrays in the host's memory; only the cells and the buffers of calls are on the device.
cells.cu describes the layout, the other .cu files the work of a warp. Not thread-safe: the caller holds the variable's
lock. Each method of the contract is here, but for those of columns.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from kvemb.backends.cuda.arrays import ArrayRows
from kvemb.backends.cuda.cells import COUNT_BYTES, NO_POSITIONS, NULL, WARP, Cells
from kvemb.backends.cuda.columns import CellColumns
from kvemb.backends.cuda.cupy_device import open_device
from kvemb.backends.cuda.device import Device
from kvemb.backends.cuda.memory import CELLS, bytes_per_cell, chunk_shift
from kvemb.backends.cuda.steps import GivenSums, Steps
from kvemb.contracts import HotTable, Memory, PlannedChange
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.rows.schema import Schema

_logger = logging.getLogger("kvemb")

# A step of growth adds 1/STEP of the table's buckets, and at least a chunk.
STEP = 32
# The share of a device's memory for one store, unless device_memory is given. The rest is for callers' arrays and other
# programs.
SHARE = 0.75
# A call on many rows copies this many at a time, to bound its memory on the device.
PART_ROWS = 65_536


class CudaTable(CellColumns, HotTable):
    """A hot table in a GPU's memory. open_device: returns a device by its name. cells: used by ArrayRows."""

    cells_per_bucket = CELLS
    open_device: Callable[[str], Device] = staticmethod(open_device)

    def __init__(
        self, schema: Schema, cells: int, max_cells: int, limits: Limits = DEFAULT, device: str | None = None
    ) -> None:
        name = device or "gpu:0"
        first = max(1, -(-cells // CELLS))
        most = max(first, max_cells // CELLS)
        super().__init__(Cells(type(self).open_device(name), schema, most))
        self.schema, self.size = schema, 0
        self._queue, self._steps, self._value_bytes = self.cells.queue, Steps(self.cells), self.cells.value_bytes
        self.device_rows = ArrayRows(self.cells, self._steps, name)
        self._row_bytes = RowBlock.bytes_per_row(schema)
        self._warned: set[str] = set()
        self._rows_until_growth = 0
        # So hot rows can be found and written to disk, one bucket at a time, when the device has no memory left.
        self._buffers.fitting(CELLS, CELLS, rows=self._row_bytes, keys=8, cells=8, missing=8, out=8)
        self._buffers.of("count", COUNT_BYTES)
        self._buffers.keep_least()
        self._enlarge(self._chunks.rounded(first))

    @classmethod
    def memory(cls, device: str) -> Memory:
        return Memory(device, int(cls.open_device(device).memory_bytes() * SHARE))

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        return bytes_per_cell(schema)

    @staticmethod
    def first_rows(rows: int, max_rows: int) -> int:
        chunk = CELLS << chunk_shift(max_rows // CELLS)
        return min(-(-rows // chunk) * chunk, max(rows, max_rows))

    @property
    def capacity_rows(self) -> int:
        return self._chunks.buckets * CELLS

    @property
    def max_capacity_rows(self) -> int:
        return self._chunks.max_buckets * CELLS

    @property
    def step_rows(self) -> int:
        buckets = self._chunks.buckets
        grown = self._chunks.rounded(buckets + max(1, buckets // STEP))
        return 0 if self._rows_until_growth else (grown - buckets) * CELLS

    # By key.

    def find(self, keys: Keys) -> Positions:
        buffers, found = self._buffers, np.empty(len(keys), np.int64)
        for part in buffers.parts(len(keys), keys=8, cells=8, missing=8):
            n = part.stop - part.start
            self.cells.start_find(buffers.put("keys", keys[part]), n)
            found[part] = buffers.get(buffers.of("cells", 8 * n), n, np.int64)
        return found

    def _find(self, keys: Keys, **how: Any) -> Positions:
        """Find keys and write their cells to the buffer "cells"; return the positions of missing keys. how: of find."""
        count = self.cells.find(self._buffers.put("keys", keys), len(keys), **how)
        return self.cells.missing(count)

    def lookup(
        self, keys: Keys, out: Any, rule: ScoreRule | None, now: float, counts: Positions | None = None
    ) -> Positions:
        found = self._buffers.of("out", self._value_bytes * len(keys))
        times = NULL if counts is None else self._buffers.put("uses", counts)
        missing = self._find(keys, out=found, rule=rule, now=now, counts=times)
        self._copy_out(found, out, np.delete(np.arange(len(keys)), missing) if len(missing) else None)
        return missing

    def _copy_out(self, address: int, out: Any, chosen: Positions | None) -> None:
        """Copy embeddings to out (n, dim), or only the chosen ones."""
        if not out.size:
            return
        if chosen is None and out.flags.c_contiguous:
            self._queue.download(out, address)
            return
        rows = np.empty(out.shape, out.dtype)
        self._queue.download(rows, address)
        wanted = slice(None) if chosen is None else chosen
        out[wanted] = rows[wanted]

    def pool(
        self, keys: Keys, bags: Bags, beside: RowsBeside | None, out: Any, rule: ScoreRule | None, now: float
    ) -> Positions:
        pooled, n = self._buffers.of("out", self._value_bytes * bags.bag_count), len(keys)
        at, values = self.cells.put_beside(beside)
        missing = self._find(keys, at=at, rule=rule, now=now)
        self.cells.pool(self._buffers.of("cells", 8 * n), n, bags, at, values, pooled)
        self._copy_out(pooled, out, None)
        return missing

    def upsert(self, keys: Keys, values: Any, step: int) -> Positions:
        missing = self._find(keys)
        cells = self._buffers.of("cells", 8 * len(keys))
        self.cells.assign(cells, self._buffers.put("values", values), len(keys), step)
        return missing

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        # Grows when the bucket of a key is full. Evicted rows are in the order of the rows that replace them. If the
        # device has no memory for growth although the budget has, rows are evicted instead.
        self._rows_until_growth = max(0, self._rows_until_growth - len(rows))
        growing = reserve is not None and self.step_rows > 0
        pending, left = self._insert(rows, by_score, clean_too, evicting=not growing)
        while len(pending):
            rows = rows.select(pending)
            # No growth if few cells are in use, because keys that share a few buckets find no room in a table of any
            # size.
            may_grow = self.step_rows > 0 and 2 * self.size > self.capacity_rows
            growing = reserve is not None and may_grow and reserve(self.step_rows) and self._grown()
            pending, left = self._insert(rows, by_score, clean_too, evicting=not growing)
        return left

    def _grown(self) -> bool:
        """Grow; return whether the table has grown.

        If the device has no memory left, the next attempt is made only after as many rows were offered as there are
        cells, because a failed allocation takes long.
        """
        try:
            self.grow()
        except MemoryError as error:
            self._rows_until_growth = self.capacity_rows
            self._warn(f"a hot table stays at {self.capacity_rows} rows", error)
            return False
        return True

    def _warn(self, what: str, error: MemoryError) -> None:
        """Log once that the device lacks memory for this."""
        if what not in self._warned:
            self._warned.add(what)
            _logger.warning("%s: %s; open the store with a smaller device_memory", what, error)

    def _insert(self, rows: RowBlock, by_score: bool, clean_too: bool, *, evicting: bool) -> tuple[Positions, RowBlock]:
        """Insert rows. Returns the positions of rows without room (none if evicting), and the rows evicted."""
        if not len(rows):
            return NO_POSITIONS, RowBlock(self.schema, 0)
        try:
            given, pitch = self._buffers.put_rows("rows", rows)
            self.cells.prepare_insert(len(rows), evicting=evicting)
        except MemoryError as error:
            self._warn("rows stay out of a hot table", error)
            return NO_POSITIONS, rows if clean_too else rows.select(rows.flags & DIRTY != 0)
        done = self.cells.insert(given, pitch, len(rows), by_score=by_score, clean_too=clean_too, evicting=evicting)
        self.size += done.fresh
        return self.cells.missing(done.waiting), self._take_left(done.leaving, done.left, done.pitch, done.left_at)

    def _take_left(self, count: int, left: int, pitch: int, left_at: int) -> RowBlock:
        """Return the evicted rows, in the order of the rows that replaced them."""
        rows, at = RowBlock(self.schema, count), self._buffers.get(left_at, count, np.int64)
        self._buffers.get_rows(left, pitch, rows)
        return rows.select(np.argsort(at))

    # By cell.

    def read(self, cells: Positions) -> RowBlock:
        buffers, rows = self._buffers, RowBlock(self.schema, len(cells))
        for part in buffers.parts(len(cells), PART_ROWS, rows=self._row_bytes, cells=8):
            n = part.stop - part.start
            buffer, pitch = buffers.for_rows("rows", self.schema, n)
            self._run("read_rows", WARP * n, buffers.put("cells", cells[part]), n, buffer, pitch)
            buffers.get_rows(buffer, pitch, rows.part(part.start, part.stop))
        return rows

    def put(self, cells: Positions, rows: RowBlock) -> None:
        if n := len(cells):
            given = self._buffers.put_rows("rows", rows)
            self._run("put_rows", WARP * n, self._buffers.put("cells", cells), n, *given)

    def gather(self, cells: Positions, out: Any) -> None:
        if n := len(cells):
            found = self._buffers.of("out", self._value_bytes * n)
            self.cells.gather(self._buffers.put("cells", cells), n, found)
            chosen = np.flatnonzero(cells >= 0)
            self._copy_out(found, out, None if len(chosen) == n else chosen)

    def prepare(self, count: int, change: PlannedChange) -> None:
        buffers = self._buffers
        for name in ("keys", "cells", "missing"):
            buffers.of(name, 8 * count)
        for name in ("values", "old")[: change.embeddings]:
            buffers.of(name, self._value_bytes * count)
        if change.rows:
            buffers.for_rows("rows", self.schema, count)
        self.cells.prepare_change(count, adding=change.embeddings == 2)
        if change.optimizer is not None:
            if change.grads is not None:
                buffers.of("values", change.grads.nbytes)
            buffers.of("first", 8 * count)
            entries = len(change.sums.following) if change.sums is not None and change.sums.chained else 0
            if entries:
                self._steps.prepare_groups(count, entries)
            self._steps.prepare_step(change.optimizer.formulas, change.optimizer, count, entries=entries)
        if change.matching is not None:
            self._steps.prepare_match(count, change.matching)

    def assign(self, cells: Positions, values: Any, step: int) -> None:
        buffers = self._buffers
        self.cells.assign(buffers.put("cells", cells), buffers.put("values", values), len(cells), step)

    def add(self, cells: Positions, old: Any, new: Any, step: int) -> None:
        buffers = self._buffers
        self.cells.add(
            buffers.put("cells", cells), buffers.put("old", old), buffers.put("values", new), len(cells), step
        )

    def apply(self, cells: Positions, optimizer: Optimizer, grads: Any, step: int, sums: Sums, count: int) -> None:
        buffers, first = self._buffers, self._buffers.put("first", sums.first)
        groups = self._steps.put_groups(sums) if sums.chained else (NULL, NULL, NULL)
        summed = GivenSums(first, *groups, len(sums.following))
        given = buffers.put("cells", cells), len(cells), buffers.put("values", grads)
        self._steps.step(optimizer.formulas, optimizer, *given, summed, step, count)

    def match(self, cells: Positions, optimizer: Optimizer, step: int) -> None:
        self._steps.match(self._buffers.put("cells", cells), len(cells), optimizer, step)

    def remove(self, cells: Positions) -> None:
        cells = np.unique(cells[cells >= 0])
        if n := len(cells):
            used = self._buffers.zeros("count", 1)
            self._run("remove_cells", n, self._buffers.put("cells", cells), n, used)
            self.size -= int(self._buffers.get(used, 1, np.int64)[0])

    def clear(self) -> None:
        self._run("clear", self.capacity_rows, 0)
        self.size = 0

    def grow(self) -> None:
        if not self.step_rows:
            raise ValueError(f"a table of {self.capacity_rows} cells cannot grow past {self.max_capacity_rows}")
        before, after = self._chunks.buckets, (self.capacity_rows + self.step_rows) // CELLS
        self._enlarge(after)
        while before < after:  # level by level, so that no launch splits a bucket that is new itself
            level = min(after, 2 << before.bit_length() - 1)
            self._run("split", WARP * (level - before), before, buckets=level)
            before = level

    def _enlarge(self, buckets: int) -> None:
        """Grow to this number of buckets; the new ones are empty. On MemoryError nothing has changed."""
        before = self._chunks.buckets
        self._chunks.resize(buckets)
        self._run("clear", (buckets - before) * CELLS, before)

    def shrink(self, cells: int, min_rows: int) -> RowBlock:
        chunks, buffers = self._chunks, self._buffers
        floor = chunks.rounded(max(1, -(-min_rows // CELLS)))
        wanted = max(0, chunks.buckets - -(-cells // CELLS)) >> chunks.shift << chunks.shift
        least = min(max(wanted, floor), chunks.buckets)
        count, buckets = 0, chunks.buckets
        try:
            left = RowBlock(self.schema, (chunks.buckets - least) * CELLS)
            # Allocated before the first row leaves, because later parts may be larger than the first.
            part = buffers.fitting(min(PART_ROWS, len(left)), CELLS, left=self._row_bytes, left_at=8) // CELLS
        except MemoryError:
            return RowBlock(self.schema, 0)
        while buckets > least:  # level by level, as in grow()
            last = max(least, 1 << (buckets - 1).bit_length() - 1, buckets - part)
            most = (buckets - last) * CELLS
            buffer, pitch = buffers.for_rows("left", self.schema, most)
            counts, left_at = buffers.zeros("count", 2), buffers.of("left_at", 8 * most)
            self._run(
                "merge", WARP * (buckets - last), last, counts, counts + 8, buffer, pitch, left_at, buckets=buckets
            )
            gone, leaving = buffers.get(counts, 2, np.int64).tolist()
            left.put(slice(count, count + leaving), self._take_left(leaving, buffer, pitch, left_at))
            count, buckets, self.size = count + leaving, last, self.size - gone
        chunks.resize(least)
        return left.part(0, count)
