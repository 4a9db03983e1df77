"""A second HotTable: rows in memory that nothing outside can index, as a device's would be. Plain Python, for tests.

Any key may stand in any cell, so the lowest score of all leaves. It doubles and halves. It shares no code with the
CPU's table but the row kernels, which work on a copy of the rows and write it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from pooled import pooled

from kvemb.backends.cpu_rows import CpuRows
from kvemb.contracts import Memory, PlannedChange
from kvemb.limits import DEFAULT, Limits
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.schema import Schema

MARKS = PENDING | WRITING
DEVICE_BYTES = 1 << 20


class Cell:
    """One row. It has no length, items or buffer, so NumPy can neither index nor view it."""

    __slots__ = ("flags", "key", "score", "step", "words")

    def __init__(self, rows: RowBlock, at: int) -> None:
        self.key, self.score, self.step = int(rows.keys[at]), float(rows.scores[at]), int(rows.steps[at])
        self.flags, self.words = int(rows.flags[at]), rows.words[at].tobytes()

    def copy_to(self, rows: RowBlock, at: int) -> None:
        rows.keys[at], rows.scores[at], rows.steps[at] = self.key, self.score, self.step
        rows.flags[at], rows.words[at] = self.flags, np.frombuffer(self.words, np.uint64)


class OpaqueTable:
    """contracts.HotTable over a dict of cells."""

    cells_per_bucket: ClassVar[int] = 16

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        max_capacity_rows: int,
        limits: Limits = DEFAULT,
        device: str | None = None,
    ) -> None:
        self._schema, self._capacity, self._most = schema, capacity_rows, max(capacity_rows, max_capacity_rows)
        self._cells: dict[int, Cell] = {}
        self._cell_of: dict[int, int] = {}
        self._kernels = CpuRows()

    @staticmethod
    def memory(device: str) -> Memory:
        return Memory(device, DEVICE_BYTES)

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        return RowBlock.bytes_per_row(schema)

    @staticmethod
    def first_rows(rows: int, max_rows: int) -> int:
        halved = max_rows // 16
        while halved >= 2 * -(-rows // 16):
            halved //= 2
        return max(rows, halved * 16)

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def size(self) -> int:
        return len(self._cells)

    @property
    def capacity_rows(self) -> int:
        return self._capacity

    @property
    def max_capacity_rows(self) -> int:
        return self._most

    @property
    def nbytes(self) -> int:
        return self._capacity * self.bytes_per_cell(self._schema)

    @property
    def device_rows(self) -> None:
        return None

    @property
    def step_rows(self) -> int:
        return self._capacity if 2 * self._capacity <= self._most else 0

    # By key.

    def find(self, keys: Any) -> Any:
        return np.array([self._cell_of.get(key, -1) for key in keys.tolist()], np.int64)

    def lookup(self, keys: Any, out: Any, rule: ScoreRule | None, now: float, counts: Any = None) -> Any:
        cells = self.find(keys)
        self.gather(cells, out)
        for at in np.flatnonzero(cells >= 0).tolist() if rule in (ScoreRule.LAST_USE, ScoreRule.COUNT) else []:
            found, more = self._cells[cells[at]], 1.0 if counts is None else float(counts[at])
            found.score = max(found.score, now) if rule is ScoreRule.LAST_USE else found.score + more
            found.flags |= DIRTY
        return np.flatnonzero(cells < 0)

    def pool(
        self, keys: Any, bags: Bags, beside: RowsBeside | None, out: Any, rule: ScoreRule | None, now: float
    ) -> Any:
        rows = np.zeros((len(keys), self._schema.dim), self._schema.value_dtype)
        here = np.arange(len(keys)) if beside is None else np.flatnonzero(beside.at < 0)
        found = rows[here]
        missing = here[self.lookup(keys[here], found, rule, now)]
        rows[here] = found
        if beside is not None:
            rows[beside.at >= 0] = beside.values[beside.at[beside.at >= 0]]
        out[:] = pooled(rows, bags)
        return missing

    def upsert(self, keys: Any, values: Any, step: int) -> Any:
        cells = self.find(keys)
        self.assign(cells, values, step)
        return np.flatnonzero(cells < 0)

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        left: list[Cell] = []
        for at in range(len(rows)):
            full = len(self._cells) == self._capacity
            if full and reserve is not None and self.step_rows and reserve(self.step_rows):
                self.grow()
            new = Cell(rows, at)
            if len(self._cells) < self._capacity:
                cell = next(number for number in range(self._capacity) if number not in self._cells)
            else:
                cell = min(self._cells, key=lambda number: (self._cells[number].score, self._cells[number].key))
                victim = self._cells[cell]
                if by_score and not new.flags & DIRTY and victim.score >= new.score:
                    continue
                del self._cell_of[victim.key]
                if clean_too or victim.flags & DIRTY:
                    left.append(victim)
            self._cells[cell], self._cell_of[new.key] = new, cell
        return self._block(left)

    def keys(self) -> Any:
        return self.read(self.occupied()).keys

    def sample(self, at: float, count: int) -> tuple[Any, Any]:
        start = int(at * (self._capacity - min(count, self._capacity)))
        rows = self.read(np.array([cell for cell in sorted(self._cells) if start <= cell < start + count], np.int64))
        return rows.keys, rows.scores

    # By cell.

    def occupied(self) -> Any:
        return np.array(sorted(self._cells), np.int64)

    def read(self, cells: Any) -> RowBlock:
        return self._block([self._cells[cell] for cell in cells.tolist()])

    def put(self, cells: Any, rows: RowBlock) -> None:
        for at, cell in enumerate(cells.tolist()):
            assert self._cells[cell].key == rows.keys[at]
            self._cells[cell] = Cell(rows, at)

    def gather(self, cells: Any, out: Any) -> None:
        rows, index = self._copied(cells)
        self._kernels.gather(rows, index, out)

    def prepare(self, count: int, change: PlannedChange) -> None:
        pass

    def assign(self, cells: Any, values: Any, step: int) -> None:
        rows, index = self._copied(cells)
        self._kernels.assign(rows, index, values, step)
        self._write_back(rows)

    def add(self, cells: Any, old: Any, new: Any, step: int) -> None:
        rows, index = self._copied(cells)
        self._kernels.add(rows, index, old, new, step)
        self._write_back(rows)

    def apply(self, cells: Any, optimizer: Any, grads: Any, step: int, sums: Any = None, count: int = 0) -> None:
        rows, index = self._copied(cells)
        self._kernels.apply(rows, index, optimizer, grads, step, sums, count)
        self._write_back(rows)

    def match(self, cells: Any, optimizer: Any, step: int) -> None:
        rows, index = self._copied(cells)
        self._kernels.match(rows, index, optimizer, step)
        self._write_back(rows)

    def scores(self, cells: Any) -> Any:
        return np.array([self._cells[cell].score for cell in cells.tolist()], np.float64)

    def set_scores(self, cells: Any, scores: Any) -> None:
        for cell, score in zip(cells.tolist(), scores.tolist(), strict=True):
            self._cells[cell].score = score
            self._cells[cell].flags |= DIRTY

    def remove(self, cells: Any) -> None:
        for cell in cells.tolist():
            if cell in self._cells:
                del self._cell_of[self._cells.pop(cell).key]

    def clear(self) -> None:
        self._cells, self._cell_of = {}, {}

    def grow(self) -> None:
        if not self.step_rows:
            raise ValueError(f"a table of {self._capacity} cells cannot grow past {self._most}")
        self._capacity *= 2

    def shrink(self, cells: int, min_rows: int) -> RowBlock:
        half = self._capacity // 2
        if half % self.cells_per_bucket or half < max(min_rows, self.cells_per_bucket):
            return RowBlock(self._schema, 0)
        order = sorted(self._cells.values(), key=lambda cell: (cell.score, cell.key))
        leaving, staying = order[: max(0, len(order) - half)], order[max(0, len(order) - half) :]
        left = self._block([cell for cell in leaving if cell.flags & DIRTY])
        self._cells, self._capacity = dict(enumerate(staying)), half
        self._cell_of = {cell.key: number for number, cell in self._cells.items()}
        return left

    # Dirty rows, and rows marked by a snapshot.

    def dirty_batches(self, limit: int) -> Iterator[tuple[Any, RowBlock]]:
        dirty = np.array([cell for cell in sorted(self._cells) if self._cells[cell].flags & DIRTY], np.int64)
        for start in range(0, len(dirty), limit):
            yield dirty[start : start + limit], self.read(dirty[start : start + limit])

    def mark_clean(self, cells: Any) -> None:
        for cell in cells.tolist():
            self._cells[cell].flags &= ~DIRTY

    def mark_dirty_pending(self) -> Any:
        dirty = [cell for _, cell in sorted(self._cells.items()) if cell.flags & DIRTY]
        for cell in dirty:
            cell.flags |= PENDING
        return np.array([cell.key for cell in dirty], np.int64)

    def release_pending(self, cells: Any) -> RowBlock:
        found = [self._cells[cell] for cell in sorted({cell for cell in cells.tolist() if cell >= 0})]
        pending = self._block([cell for cell in found if cell.flags & PENDING])
        for cell in found:
            cell.flags &= ~MARKS
        return pending

    def take_pending(self, cells: Any) -> tuple[Any, RowBlock]:
        wanted = [self._cells.get(cell) for cell in cells.tolist()]
        chosen = [at for at, cell in enumerate(wanted) if cell is not None and cell.flags & PENDING]
        found = [cell for cell in wanted if cell is not None and cell.flags & PENDING]
        taken = self._block(found)
        for cell in found:
            cell.flags ^= MARKS
        return np.array(chosen, np.int64), taken

    def mark_written(self, cells: Any) -> None:
        for cell in cells.tolist():
            if cell >= 0 and self._cells[cell].flags & WRITING:
                self._cells[cell].flags &= ~(WRITING | DIRTY)

    def release_all(self) -> None:
        for cell in self._cells.values():
            cell.flags &= ~MARKS

    # Copies.

    def _block(self, cells: list[Cell]) -> RowBlock:
        rows = RowBlock(self._schema, len(cells))
        for at, cell in enumerate(cells):
            cell.copy_to(rows, at)
        return rows

    def _copied(self, cells: Any) -> tuple[RowBlock, Any]:
        """The rows of cells, each once, and for every entry its row, -1 for none."""
        distinct = sorted({cell for cell in cells.tolist() if cell >= 0})
        position = {cell: at for at, cell in enumerate(distinct)}
        return self.read(np.array(distinct, np.int64)), np.array(
            [position.get(c, -1) for c in cells.tolist()], np.int64
        )

    def _write_back(self, rows: RowBlock) -> None:
        for at in range(len(rows)):
            self._cells[self._cell_of[int(rows.keys[at])]] = Cell(rows, at)


class SmallTable(OpaqueTable):
    """A table of 16 rows, whatever size is requested."""

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        max_capacity_rows: int,
        limits: Limits = DEFAULT,
        device: str | None = None,
    ) -> None:
        super().__init__(schema, 16, 16, limits, device)
