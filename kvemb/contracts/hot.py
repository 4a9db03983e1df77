"""The interfaces of hot tables and of the memory they are in. Implementations do not lock; their tier does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.contracts.device import DeviceRows
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule, Scores
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, PENDING, SNAPSHOT_FLAGS, WRITING, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.rows.schema import Schema

Values = npt.NDArray[Any]
Flags = npt.NDArray[np.uint8]
_MARKS = int(SNAPSHOT_FLAGS)


class Memory(NamedTuple):
    """A memory that cells are in. nbytes: how much of it one store may take for cells."""

    name: str
    nbytes: int


# The host's memory. A store's part of it is its memory_budget, so nbytes is not used.
HOST = Memory("host", 0)


class RowKernels(Protocol):
    """Operations on rows of a block in host memory. index (n,) int64: positions of rows in it; entries < 0 are skipped.

    A contract, although backends/cpu_rows.py alone implements it: its kernels are those of the hot table on the CPU.
    `step` is recorded as the step of last change, and the rows become dirty. Repeated entries of index apply in order.
    """

    def gather(self, block: RowBlock, index: Positions, out: Values) -> None:
        """Copy embeddings to out (n, dim) of the value dtype."""

    def assign(self, block: RowBlock, index: Positions, values: Values, step: int) -> None:
        """Set embeddings to values (n, dim); slots and scores stay."""

    def add(self, block: RowBlock, index: Positions, old: Values, new: Values, step: int) -> None:
        """Add new - old to embeddings, in the value dtype (16-bit floats: in float32, rounded once)."""

    def apply(
        self, block: RowBlock, index: Positions, optimizer: Optimizer, grads: Values, step: int, sums: Sums, count: int
    ) -> None:
        """Take one step of the optimizer on embeddings and slots; index distinct.

        grads (·, dim) in the slot dtype: the gradient of index[i] is the sum of those rows, in order, that sums has for
        key i. count: the number of this step, if the optimizer needs it (Optimizer.counts_steps). A row's new bytes
        depend only on its old bytes, its gradients and count.
        """

    def row_gradients(self, sums: Sums, bag_of: Positions, weights: Values, grads: Values, out: Values) -> None:
        """Set out (m, dim) to each key's sum, in order, of weight * gradient of the bag over the key's occurrences.

        sums: the occurrences of m keys among n. bag_of (n,): the bag of each occurrence. weights (n,), or (0,) if all
        are 1. grads (b, dim): the gradients of bags, in the dtype of weights.
        """

    def match(self, block: RowBlock, index: Positions, optimizer: Optimizer, step: int) -> None:
        """Set the slots that depend on the embedding (Optimizer.match), after it was set other than by a step."""


class PlannedChange(NamedTuple):
    """The kind of a change of rows, by which HotTable.prepare decides how much memory to allocate.

    rows: whether whole rows are given, for put(). embeddings: the number of arrays (n, dim) that are given: 1 for
    assign() and upsert(), 2 for add(). optimizer, grads, sums: those of apply(). matching: the optimizer of match().
    """

    rows: bool = False
    embeddings: int = 0
    optimizer: Optimizer | None = None
    grads: Values | None = None
    sums: Sums | None = None
    matching: Optimizer | None = None


class HotTable(Protocol):
    """A hash table of rows in cells, in memory of its own. A full bucket evicts the row with the lowest score.

    Callers do not access its columns: rows are copied in and out, by key or by cell. A cell is an int64 number that
    find() returns; it is valid until the next insert, remove, clear, grow or shrink. Where a method takes cells (n,),
    entries < 0 are skipped, unless it says otherwise.

    Rows have flags (kvemb.rows.block). A change makes a row DIRTY, and an evicted dirty row is returned to the caller.
    A snapshot marks dirty rows PENDING and, once it has taken them, WRITING (kvemb.tiers.snapshot). A row that leaves
    keeps its marks.

    schema: that of its rows. size: rows. device_rows: the rows, for arrays in a GPU's memory; None if the table is in
    the host's memory.
    """

    cells_per_bucket: ClassVar[int]
    schema: Schema
    size: int
    device_rows: DeviceRows | None

    def __init__(
        self, schema: Schema, cells: int, max_cells: int, limits: Limits = DEFAULT, device: str | None = None
    ) -> None:
        """Make an empty table.

        cells, max_cells: how many at first and at most, multiples of cells_per_bucket. device: such as "gpu:1"; None:
        the first of this kind. Raises MemoryError.
        """

    @staticmethod
    def memory(device: str) -> Memory:
        """Return the memory whose budget pays for the cells of a table on this device ("cpu", "gpu:0").

        Raises BackendUnavailable if there is no such device.
        """

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        """Return the bytes that one cell takes of that memory."""

    @staticmethod
    def first_rows(rows: int, max_rows: int) -> int:
        """Return a first number of cells, at least `rows`, from which growth in this kind's steps reaches max_rows."""

    @property
    def capacity_rows(self) -> int:
        """Cells now."""

    @property
    def max_capacity_rows(self) -> int:
        """Cells it may grow to."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory its cells take now."""
        return self.capacity_rows * self.bytes_per_cell(self.schema)

    @property
    def step_rows(self) -> int:
        """Cells that grow() would add, which depend on the kind; 0 if no step fits below max_capacity_rows."""

    # By key.

    def find(self, keys: Keys) -> Positions:
        """Return the cell of each key (n,), -1 where it is not in the table. Scores are not touched."""

    def lookup(
        self, keys: Keys, out: Values, rule: ScoreRule | None, now: float, counts: Positions | None = None
    ) -> Positions:
        """Find keys, copy their embeddings to out (n, dim), and record one use for each occurrence.

        rule: None or CUSTOM: scores are not changed. counts (n,): how many uses COUNT records for each occurrence;
        None: one. Returns the positions of the keys that are not in the table, ascending; their rows of out are not
        changed.
        """

    def pool(
        self, keys: Keys, bags: Bags, beside: RowsBeside | None, out: Values, rule: ScoreRule | None, now: float
    ) -> Positions:
        """Find the keys (n,) of bags, and write each bag's pooled row (kvemb.rows.bags) to out (b, dim).

        beside: rows, in the value dtype, of keys that are not looked up in the table. Uses are recorded as by lookup.
        Returns the positions of keys that are in neither, ascending; the rows of out for their bags are undefined. A
        pooled row depends only on the rows of its bag, not on where they are.
        """

    def upsert(self, keys: Keys, values: Values, step: int) -> Positions:
        """Find keys and set their embeddings, in order. Returns the positions of missing keys, as lookup does."""

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        """Insert rows whose keys are distinct and not in the table; return the dirty rows that were evicted.

        Among the cells that a key may be in, the row with the lowest score is evicted; of equal scores, the smaller
        key. by_score: a clean new row that does not outscore that row is not inserted. Clean rows that are evicted are
        dropped. Before a row is evicted, reserve(step_rows) is called to reserve memory for that many cells; if it
        returns True, the table grows by them. Without reserve the table never grows. clean_too: also return clean rows
        that were evicted. If a device has no memory for the call, rows are treated as inserted and evicted at once.
        """

    def sample(self, at: float, count: int) -> tuple[Keys, Scores]:
        """Return the keys and scores of the rows in min(count, capacity_rows) cells, chosen independently of both.

        at: from 0 to 1 (excluded); it selects the cells.
        """

    # By cell.

    def occupied(self) -> Positions:
        """Return the cells in use, ascending."""

    def keys(self, cells: Positions | None = None) -> Keys:
        """Return the keys of cells, which are all in use; None: of all rows, in the order of their cells."""

    def read(self, cells: Positions) -> RowBlock:
        """Return the whole rows in cells, which are all in use, in that order."""

    def put(self, cells: Positions, rows: RowBlock) -> None:
        """Overwrite the rows in cells, which are all in use, with rows of the same keys."""

    def gather(self, cells: Positions, out: Values) -> None:
        """See RowKernels.gather."""

    def prepare(self, count: int, change: PlannedChange) -> None:
        """Allocate the buffers of a change of `count` cells or keys, so that it cannot run out of memory half-way.

        Raises MemoryError.
        """

    def assign(self, cells: Positions, values: Values, step: int) -> None:
        """See RowKernels.assign."""

    def add(self, cells: Positions, old: Values, new: Values, step: int) -> None:
        """See RowKernels.add."""

    def apply(self, cells: Positions, optimizer: Optimizer, grads: Values, step: int, sums: Sums, count: int) -> None:
        """See RowKernels.apply."""

    def match(self, cells: Positions, optimizer: Optimizer, step: int) -> None:
        """See RowKernels.match."""

    def scores(self, cells: Positions) -> Scores:
        """Return the scores of cells, which are all in use."""

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        """Set the scores of cells, which are all in use; the rows become dirty."""

    def flags(self, cells: Positions) -> Flags:
        """Return the flags of cells, which are all in use."""

    def flagged(self, flag: int) -> Iterator[Positions]:
        """Yield the cells whose rows have a flag, ascending, part by part of the table."""

    def change_flags(self, cells: Positions | None, where: int, *, keep: int, more: int = 0) -> None:
        """For cells that have one of the bits `where`, clear all bits but `keep`, then set the bits `more`.

        cells are all in use; None: all cells of the table.
        """

    def remove(self, cells: Positions) -> None:
        """Empty cells."""

    def clear(self) -> None:
        """Empty every cell."""

    def grow(self) -> None:
        """Add step_rows cells. Raises ValueError if that is 0."""

    def shrink(self, cells: int, min_rows: int) -> RowBlock:
        """Give up cells and their memory; return the dirty rows that were evicted.

        cells: how many; rounded up to the kind's steps. At least min_rows cells stay; none are given up if the kind's
        smallest step would leave fewer, or if there is no memory for the result. If there is no room for a row, it or a
        row that it outscores is evicted.
        """

    # Dirty rows, and rows marked by a snapshot: written once for every kind of table, over the flags of its cells.
    # These methods, and those that they call, raise MemoryError before anything has changed.

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
