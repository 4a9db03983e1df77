"""What tiering asks of hot tables and of the memory they are in. None of them locks: the tier that owns it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy.typing as npt

from kvemb.contracts.device import DeviceRows
from kvemb.limits import DEFAULT, Limits
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule, Scores
from kvemb.rows.bags import Bags, Beside
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.rows.schema import Schema

Values = npt.NDArray[Any]


class Memory(NamedTuple):
    """A memory that cells live in. nbytes: of it, what one store may take for them."""

    name: str
    nbytes: int


# The host's: there a store takes what its memory_budget says, so no number stands here.
HOST = Memory("host", 0)


class RowKernels(Protocol):
    """Operations on rows of a block in host memory. index (n,) int64 names rows of it; entries < 0 are skipped.

    `step` is recorded as the step of last change, and the rows become dirty. Repeated entries of index apply in order.
    """

    def gather(self, block: RowBlock, index: Positions, out: Values) -> None:
        """Copy embeddings to out (n, dim) of the value dtype."""

    def assign(self, block: RowBlock, index: Positions, values: Values, step: int) -> None:
        """Set embeddings to values (n, dim); slots and scores stay."""

    def add(self, block: RowBlock, index: Positions, old: Values, new: Values, step: int) -> None:
        """Add new - old to embeddings, in the value's dtype (16-bit floats: in float32, rounded once)."""

    def apply(
        self,
        block: RowBlock,
        index: Positions,
        optimizer: Optimizer,
        grads: Values,
        step: int,
        sums: Sums | None = None,
        count: int = 0,
    ) -> None:
        """Take one step of the optimizer on embeddings and slots; index distinct.

        grads (·, dim) in the slot dtype: row i for index[i]; with sums, for index[i] the sum of the i-th ones, in their
        order. count: the number of this step, where the variable counts them (Optimizer.counts_steps). A row's new
        bytes depend on its own gradients, and on count, alone.
        """

    def row_gradients(self, sums: Sums, bag_of: Positions, weights: Values, grads: Values, out: Values) -> None:
        """Set out (m, dim) to each key's sum, in order, of weight * the gradient of the bag that the occurrence is in.

        sums: the occurrences of m keys among n; bag_of (n,): their bags; weights (n,), or (0,): all are 1; grads
        (b, dim) of the same dtype.
        """

    def match(self, block: RowBlock, index: Positions, optimizer: Optimizer, step: int) -> None:
        """Set the slots that follow the embedding, after it was set by anything but a step (Optimizer.match)."""


class Change(NamedTuple):
    """What a change of rows is given, which decides how much memory HotTable.prepare allocates. Change(): remove().

    rows: whole rows, for put(). embeddings: how many arrays (n, dim) of them: 1 for assign() and upsert(), 2 for add().
    optimizer, grads, sums: of apply(). matching: the optimizer of match().
    """

    rows: bool = False
    embeddings: int = 0
    optimizer: Optimizer | None = None
    grads: Values | None = None
    sums: Sums | None = None
    matching: Optimizer | None = None


class HotTable(Protocol):
    """A hash table of rows in fixed cells, in memory of its own. Full buckets evict their lowest score.

    Nobody but the table indexes its columns: rows go in and out as copies, by key or by cell. A cell is an int64 number
    that find() gives; it names the row until the next insert, remove, clear, grow or shrink. Where a method takes cells
    (n,), entries < 0 are skipped, unless it says otherwise.

    Rows have flags (kvemb.rows.block): a change makes a row DIRTY, and a dirty row is not forgotten. A snapshot marks
    dirty rows PENDING and, once it has taken them, WRITING (kvemb.tiers.dirty_snapshot); the marks leave with the row.
    """

    cells_per_bucket: ClassVar[int]
    size: int

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        max_capacity_rows: int,
        limits: Limits = DEFAULT,
        device: str | None = None,
    ) -> None:
        """Make an empty table. Both are multiples of cells_per_bucket: cells at first, and at most.

        device: where ("gpu:1"); None: the first of the kind. Raises MemoryError.
        """

    @staticmethod
    def memory(device: str) -> Memory:
        """Return the memory whose budget pays for the cells of a table on this device ("cpu", "gpu:0").

        Raises BackendUnavailable if the device is not there.
        """

    @staticmethod
    def bytes_per_cell(schema: Schema) -> int:
        """Bytes of that memory that one cell takes."""

    @staticmethod
    def first_rows(rows: int, max_rows: int) -> int:
        """Return how many cells to begin with, at least rows, so that steps of this kind's size reach max_rows."""

    @property
    def schema(self) -> Schema:
        """The schema of its rows."""

    @property
    def capacity_rows(self) -> int:
        """Cells now."""

    @property
    def max_capacity_rows(self) -> int:
        """Cells it may grow to."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory its cells take now."""

    @property
    def device_rows(self) -> DeviceRows | None:
        """Its rows, for arrays in a GPU's memory; None if they are in the host's."""

    @property
    def step_rows(self) -> int:
        """Cells that grow() would add: a kind's own step. 0 at max_capacity_rows, or where no step fits below it."""

    # By key.

    def find(self, keys: Keys) -> Positions:
        """Return the cell of each key (n,), -1 where it is not in the table. Scores are not touched."""

    def lookup(self, keys: Keys, out: Values, rule: ScoreRule | None, now: float) -> Positions:
        """Find, copy the embeddings found to out (n, dim), and record one use of each occurrence.

        rule None or CUSTOM: scores are left alone. Returns the positions in keys of those that are not in the table,
        ascending; their rows of out are left as they are.
        """

    def pool(
        self, keys: Keys, bags: Bags, beside: Beside | None, out: Values, rule: ScoreRule | None, now: float
    ) -> Positions:
        """Find the keys (n,) of bags, and write each bag's pooled row (kvemb.rows.bags) to out (b, dim).

        beside: rows of keys that are not looked for in the table, of the value dtype. Uses are recorded as in lookup,
        and the positions of keys that are in neither are returned, ascending; the rows of out of their bags are
        undefined. A pooled row depends on its own bag alone, and on its rows, not on where they are.
        """

    def upsert(self, keys: Keys, values: Values, step: int) -> Positions:
        """Find, and set the embeddings found, in order. Returns the positions of missing keys, as lookup does."""

    def insert(
        self,
        rows: RowBlock,
        *,
        by_score: bool = False,
        reserve: Callable[[int], bool] | None = None,
        clean_too: bool = False,
    ) -> RowBlock:
        """Insert rows whose keys are distinct and not in the table; return the dirty rows that had to leave.

        Of the cells that a key may be in, the row with the lowest score is evicted; of equal scores, the smaller key.
        by_score: a clean new row that does not outscore that row stays out. Clean rows that are evicted are forgotten.
        Before a row is evicted, reserve(step_rows) is asked for the memory of so many more cells, by which the table
        then grows; without it the table never grows. clean_too: clean rows that were evicted are returned too. Where a
        device has no memory for the call, rows leave as if they had been inserted and evicted at once.
        """

    def keys(self) -> Keys:
        """Return the keys of all rows, in the order of their cells."""

    def sample(self, at: float, count: int) -> tuple[Keys, Scores]:
        """Return the keys and scores of the rows in min(count, capacity_rows) cells, chosen without regard to either.

        at: from 0 to 1 (excluded); another number, other cells.
        """

    # By cell.

    def occupied(self) -> Positions:
        """Return the cells in use, ascending."""

    def read(self, cells: Positions) -> RowBlock:
        """Return the rows of cells, which are all in use, whole and in that order."""

    def put(self, cells: Positions, rows: RowBlock) -> None:
        """Overwrite the rows of cells, which are all in use, each by a row of the same key."""

    def gather(self, cells: Positions, out: Values) -> None:
        """See RowKernels.gather."""

    def prepare(self, count: int, change: Change) -> None:
        """Allocate what a change of `count` cells or keys takes, so that it cannot fail half-way for lack of memory.

        Raises MemoryError.
        """

    def assign(self, cells: Positions, values: Values, step: int) -> None:
        """See RowKernels.assign."""

    def add(self, cells: Positions, old: Values, new: Values, step: int) -> None:
        """See RowKernels.add."""

    def apply(
        self,
        cells: Positions,
        optimizer: Optimizer,
        grads: Values,
        step: int,
        sums: Sums | None = None,
        count: int = 0,
    ) -> None:
        """See RowKernels.apply."""

    def match(self, cells: Positions, optimizer: Optimizer, step: int) -> None:
        """See RowKernels.match."""

    def scores(self, cells: Positions) -> Scores:
        """Return the scores of cells, which are all in use."""

    def set_scores(self, cells: Positions, scores: Scores) -> None:
        """Set the scores of cells, which are all in use; the rows become dirty."""

    def remove(self, cells: Positions) -> None:
        """Empty cells."""

    def clear(self) -> None:
        """Empty every cell."""

    def grow(self) -> None:
        """Add step_rows cells. Raises ValueError where that is 0."""

    def shrink(self, cells: int, min_rows: int) -> RowBlock:
        """Give up cells and their memory; return the dirty rows that had to leave.

        cells: how many; a kind may have steps of its own, so it may be more. At least min_rows stay; none are given
        up if the kind's smallest step would leave fewer, or if there is no memory for the result. A row for which
        there is no room leaves, or one that it outscores.
        """

    # What is dirty, and what a snapshot has marked.

    def dirty_batches(self, limit: int) -> Iterator[tuple[Positions, RowBlock]]:
        """Yield the dirty rows as copies with their cells, at most `limit` at a time, in the order of cells."""

    def mark_clean(self, cells: Positions) -> None:
        """The cold store has the rows of cells, which are all in use, as they are."""

    def mark_dirty_pending(self) -> Keys:
        """Mark every dirty row PENDING; return their keys."""

    def release_pending(self, cells: Positions) -> RowBlock:
        """Take all marks off the rows of cells, which are about to change; return, once each, those that were PENDING.

        If there is no memory for them, nothing has changed.
        """

    def take_pending(self, cells: Positions) -> tuple[Positions, RowBlock]:
        """Mark those rows of distinct cells WRITING that were PENDING; return their positions in cells, and the
        rows."""

    def mark_written(self, cells: Positions) -> None:
        """Rows of cells that are still marked WRITING are clean, and lose the mark."""

    def release_all(self) -> None:
        """Take all marks off all rows."""
