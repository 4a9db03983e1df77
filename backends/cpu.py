"""The hot table on the CPU: buckets of 16 cells over columns in host memory, with eviction by lowest score.

Address space is reserved for the largest size; memory is committed as the table grows and given back as it shrinks,
in small steps. Not thread-safe: the caller holds the variable's lock. Within a call, a large batch is split over the
cores. The layout is described in cpu_probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvemb.backends import cpu_bags, cpu_insert, cpu_probe
from kvemb.backends.cpu_formulas import run_formulas
from kvemb.backends.cpu_rows import CpuRows
from kvemb.backends.cpu_threads import even_bounds, joined_parts, part_count, run_parts
from kvemb.contracts import HOST, Flags, HotTable, Memory, PlannedChange
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule, Scores
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, ReservedBlock, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.rows.schema import Schema
from kvemb.threads.parallel import cores

# A step of growth in buckets: the table's buckets / STEP, at least MIN_STEP.
STEP, MIN_STEP = 64, 4
# If it may, the table grows before it is fuller than this, because fuller buckets make lookups slower.
DENSE = 0.875
# The number of cells whose flags are searched at a time.
PART_CELLS = 1 << 20
# The number of cells whose flags are changed at a time: they stay in the CPU's cache, and take no memory that counts.
CHANGED_CELLS = 1 << 16


class CpuTable(HotTable):
    """A hot table in NumPy memory."""

    cells_per_bucket = cpu_probe.CELLS
    device_rows = None

    def __init__(
        self, schema: Schema, cells: int, max_cells: int, limits: Limits = DEFAULT, device: str | None = None
    ) -> None:
        self.schema, self.size = schema, 0
        self._parallel_keys = limits.hot_parallel_keys
        self._buckets = max(1, -(-cells // cpu_probe.CELLS))
        self._max_buckets = max(self._buckets, max_cells // cpu_probe.CELLS)
        self._rows = ReservedBlock(schema, self.max_capacity_rows, huge_pages=True)
        self._digests = self._rows.another_column(np.uint8)
        self._rows.use(self.capacity_rows)
        self._tags = self._digests.view(np.uint64)
        self._kernels = CpuRows()

    @staticmethod
    def memory(device: str) -> Memory:
        return HOST

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        return RowBlock.bytes_per_row(schema) + 1

    @staticmethod
    def first_rows(rows: int, max_rows: int) -> int:
        return rows

    @property
    def capacity_rows(self) -> int:
        return self._buckets * cpu_probe.CELLS

    @property
    def max_capacity_rows(self) -> int:
        return self._max_buckets * cpu_probe.CELLS

    @property
    def step_rows(self) -> int:
        return min(max(MIN_STEP, self._buckets // STEP), self._max_buckets - self._buckets) * cpu_probe.CELLS

    def find(self, keys: Keys) -> Positions:
        cells = np.empty(len(keys), np.int64)
        table = self._buckets, self._tags, self._rows.keys, cells
        if self._worth_threads(len(keys)):
            run_parts(
                cpu_probe.find_in_parts, keys, even_bounds(len(keys)), cpu_probe.rings_of_parts(part_count())[0], *table
            )
        else:
            cpu_probe.find(keys, 0, len(keys), cpu_probe.rings()[0], *table)
        return cells

    def lookup(
        self, keys: Keys, out: Any, rule: ScoreRule | None, now: float, counts: Positions | None = None
    ) -> Positions:
        rows, n = self._rows, len(keys)
        missing: Positions = np.empty(n, np.int64)
        how = cpu_probe.NO_TOUCH if rule is None or rule is ScoreRule.CUSTOM else int(rule)
        seen = out.view(np.uint8)
        cells = self._buckets, self._tags, rows.keys, rows.words, rows.scores, rows.flags
        now = float(now)  # an int would compile the kernel again
        if not self._worth_threads(n):
            uses = how, now, False, counts
            return missing[: cpu_probe.lookup(keys, 0, n, cpu_probe.rings(), cells, uses, seen, missing)]
        bounds, absent, rings = even_bounds(n), np.empty(part_count(), np.int64), cpu_probe.rings_of_parts(part_count())
        uses = how, now, True, counts
        run_parts(cpu_probe.lookup_in_parts, keys, bounds, rings, cells, uses, seen, missing, absent)
        return joined_parts(missing, bounds, absent)

    def pool(
        self, keys: Keys, bags: Bags, beside: RowsBeside | None, out: Any, rule: ScoreRule | None, now: float
    ) -> Positions:
        how = cpu_probe.NO_TOUCH if rule is None or rule is ScoreRule.CUSTOM else int(rule)
        threads = self._worth_threads(len(keys))
        return cpu_bags.pool(keys, bags, beside, out, how, float(now), self._rows, self._buckets, self._tags, threads)

    def upsert(self, keys: Keys, values: Any, step: int) -> Positions:
        rows, seen = self._rows, values.view(np.uint8)
        cells = self._buckets, self._tags, rows.keys, rows.words, rows.steps, rows.flags
        if not self._worth_threads(len(keys)):
            chosen = np.arange(len(keys))
            return chosen[: cpu_probe.upsert(keys, chosen, cpu_probe.rings(), cells, seen, step)]
        parts = part_count()
        chosen, counts, absent = (
            np.empty((parts, len(keys)), np.int64),
            np.empty(parts, np.int64),
            np.empty(parts, np.int64),
        )
        cpu_probe.split(keys, chosen, counts)
        rings = cpu_probe.rings_of_parts(parts)
        run_parts(cpu_probe.upsert_in_parts, keys, chosen, counts, rings, cells, seen, step, absent)
        return np.sort(np.concatenate([chosen[part, : absent[part]] for part in range(parts)]))

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        # Grows if both buckets of a key are full, and the table is dense or none of their rows can move to its other
        # bucket.
        left = RowBlock(self.schema, len(rows))
        at, count = self._insert(rows, 0, left, 0, by_score, clean_too, evicting=reserve is None)
        while at < len(rows):
            # Not if the keys share a few buckets: they would not find room in a table of any size.
            growing = reserve is not None and self.step_rows > 0 and 2 * self.size > self.capacity_rows
            growing = growing and reserve is not None and reserve(self.step_rows)
            if growing:
                self.grow()
            at, count = self._insert(rows, at, left, count, by_score, clean_too, evicting=not growing)
        return left.part(0, count)

    def _insert(
        self, rows: RowBlock, start: int, left: RowBlock, count: int, by_score: bool, clean_too: bool, *, evicting: bool
    ) -> tuple[int, int]:
        dense = -1 if evicting else int(DENSE * self.capacity_rows)
        stopped, count, self.size = cpu_insert.insert(
            self._buckets, self._tags, self._digests, self._rows.columns,
            rows.columns, start, by_score, clean_too, self.size, dense, left.columns, count,
        )  # fmt: skip
        return stopped, count

    def keys(self, cells: Positions | None = None) -> Keys:
        return self._rows.keys[self.occupied() if cells is None else cells]

    def sample(self, at: float, count: int) -> tuple[Keys, Scores]:
        # Takes consecutive cells, a random sample because the hash mixes the keys.
        count = min(count, self.capacity_rows)
        start = int(at * (self.capacity_rows - count))
        cells = start + np.flatnonzero(self._digests[start : start + count])
        return self._rows.keys[cells], self._rows.scores[cells]

    # By cell.

    def occupied(self) -> Positions:
        return np.flatnonzero(self._digests[: self.capacity_rows])

    def read(self, cells: Positions) -> RowBlock:
        return self._rows.select(cells)

    def put(self, cells: Positions, rows: RowBlock) -> None:
        self._rows.put(cells, rows)

    def gather(self, cells: Positions, out: Any) -> None:
        self._kernels.gather(self._rows, cells, out)

    def prepare(self, count: int, change: PlannedChange) -> None:
        # Does nothing: this table allocates nothing after a row has changed.
        pass

    def assign(self, cells: Positions, values: Any, step: int) -> None:
        self._kernels.assign(self._rows, cells, values, step)

    def add(self, cells: Positions, old: Any, new: Any, step: int) -> None:
        self._kernels.add(self._rows, cells, old, new, step)

    def apply(self, cells: Positions, optimizer: Optimizer, grads: Any, step: int, sums: Sums, count: int) -> None:
        threads = self._worth_threads(len(cells))
        run_formulas(optimizer.formulas, optimizer, cells, self._rows, grads, step, sums, count, threads=threads)

    def match(self, cells: Positions, optimizer: Optimizer, step: int) -> None:
        self._kernels.match(self._rows, cells, optimizer, step)

    def scores(self, cells: Positions) -> Scores:
        return self._rows.scores[cells]

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        self._rows.scores[cells] = scores
        self._rows.flags[cells] |= DIRTY

    def remove(self, cells: Positions) -> None:
        self.size -= cpu_insert.remove(cells, self._digests, self._rows.flags)

    def clear(self) -> None:
        self._digests[: self.capacity_rows] = 0
        self._flags_now()[:] = 0
        self.size = 0

    def grow(self) -> None:
        more = self.step_rows // cpu_probe.CELLS
        if not more:
            raise ValueError(f"a table of {self.capacity_rows} cells cannot grow past {self.max_capacity_rows}")
        self._rows.use(self.capacity_rows + self.step_rows)
        cpu_insert.split(self._buckets, more, self._digests, self._rows.columns)
        self._buckets += more

    def shrink(self, cells: int, min_rows: int) -> RowBlock:
        least = max(1, -(-min_rows // cpu_probe.CELLS), self._buckets - -(-cells // cpu_probe.CELLS))
        rows, before = self._rows, self.capacity_rows
        try:
            left = RowBlock(self.schema, max(0, before - least * cpu_probe.CELLS))
        except MemoryError:
            return RowBlock(self.schema, 0)
        self._buckets, count, self.size = cpu_insert.merge(
            self._buckets, least, self._tags, self._digests, rows.columns, self.size, left.columns
        )
        rows.release(self.capacity_rows, before)
        return left.part(0, count)

    # Flags.

    def flags(self, cells: Positions) -> Flags:
        return self._rows.flags[cells]

    def flagged(self, flag: int) -> Iterator[Positions]:
        for at in range(0, self.capacity_rows, PART_CELLS):
            cells = np.flatnonzero(self._flags_now()[at : at + PART_CELLS] & flag != 0)  # 8 times as fast on bools
            cells += at
            yield cells

    def change_flags(self, cells: Positions | None, where: int, *, keep: int, more: int = 0) -> None:
        kept, added = np.uint8(keep & 0xFF), np.uint8(more)
        if cells is not None:
            flags = self._rows.flags
            chosen = cells[flags[cells] & where != 0]
            flags[chosen] = flags[chosen] & kept | added
            return
        for at in range(0, self.capacity_rows, CHANGED_CELLS):
            flags = self._flags_now()[at : at + CHANGED_CELLS]
            # Bits that differ are flipped where a flag is set: no element is tested, so this takes 0.3 ns a cell.
            flipped = flags & kept | added
            flipped ^= flags
            flipped *= flags & where != 0
            flags ^= flipped

    def _worth_threads(self, keys: int) -> bool:
        return keys >= self._parallel_keys and cores() > 1

    def _flags_now(self) -> Flags:
        return self._rows.flags[: self.capacity_rows]
