"""The memory of one variable's hot tables: how they grow, and how they shrink when other tables need it more.

kvemb.memory.rebalancer decides, on any thread, and sets `has_work`; the variable acts on it under its own lock, which
guards everything else here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvemb.contracts import HotTable
from kvemb.memory.budget import Budget
from kvemb.memory.marginal_benefit import MarginalBenefit
from kvemb.memory.rebalancer import MISS_USES, Share
from kvemb.restrict import Scores
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Keys

# How many cells a table gives back at a time: GIVEN_CELLS, or 1/GIVEN_PART of its own if that is more.
GIVEN_CELLS, GIVEN_PART = 8192, 64


class HotShares:
    """The shares of one variable's hot tables, each in the budget that pays for its cells.

    min_rows: cells that each table keeps when others need memory; None: tables neither grow nor shrink. A table in the
    host's memory gives up even these, except one bucket, if a variable could not be opened otherwise.
    has_work: measure() or HotTables.make_due_moves() has something to do.
    """

    def __init__(self, tables: list[HotTable], budgets: list[Budget], min_rows: int | None) -> None:
        self._budget_of = dict(zip(tables, budgets, strict=True))
        self._buffer_bytes = dict.fromkeys(tables, 0)
        self._growing, self.has_work = True, False
        self._shares = {} if min_rows is None else {table: self._joined(table, min_rows) for table in tables}
        self._benefits = {table: MarginalBenefit(table) for table in self._shares}

    def _joined(self, table: HotTable, min_rows: int) -> Share:
        cell_bytes = table.bytes_per_cell(table.schema)
        floor = cell_bytes * table.cells_per_bucket if table.device_rows is None else None
        share = Share(cell_bytes, table.nbytes, min(table.nbytes, min_rows * cell_bytes), floor)
        share.notify = self._has_work
        self._budget_of[table].join(share)
        return share

    def use_for_buffers(self, table: HotTable, nbytes: int) -> None:
        """Record that a table takes nbytes more of its memory for buffers, beside its cells."""
        self._buffer_bytes[table] += nbytes
        self._budget_of[table].take(nbytes)

    def _has_work(self) -> None:
        self.has_work = True

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Set a function that is called, on any thread, if `has_work` stays set for long. It must not block."""
        for share in self._shares.values():
            share.wake = wake

    # Growth.

    def reserve(self, table: HotTable) -> Callable[[int], bool] | None:
        """Return a function that reserves memory for a number of further cells; None if the table may not grow."""
        share = self._shares.get(table) if self._growing else None
        if share is None:
            return None
        budget = self._budget_of[table]
        return lambda cells: budget.grow(share, cells * share.cell_bytes)

    def grown(self, table: HotTable) -> None:
        """Give back what was reserved for growth and not used: a device may have less memory than its budget."""
        share = self._shares.get(table)
        if share is not None and share.held > table.nbytes:
            self._budget_of[table].shrink(share, share.held - table.nbytes)

    def offered(self, table: HotTable, keys: Keys, scores: Scores) -> None:
        """Record that rows of these keys, which were not hot, were offered to a table with these scores."""
        share = self._shares.get(table)
        if share is not None and share.refused:
            self._benefits[table].offered(keys, scores)
            self._budget_of[table].offered(share, len(keys))

    def make_room(self, rows: int) -> None:
        """Grow to cells for `rows` rows or a few more, equally many in each table, as far as the budget allows.

        A device may have less memory than its budget: then its table grows no further here. REQUIRES: nobody uses the
        tables yet.
        """
        for table in self._shares:
            reserve, most = self.reserve(table), rows // len(self._shares)
            while reserve is not None and table.step_rows and table.capacity_rows < most:
                if not reserve(table.step_rows):
                    break
                try:
                    table.grow()
                except MemoryError:
                    break
                finally:
                    self.grown(table)

    @contextmanager
    def not_growing(self) -> Iterator[None]:
        """Prevent growth during the block: inserted rows use the cells that exist."""
        self._growing = False
        try:
            yield
        finally:
            self._growing = True

    # Giving.

    def measure(self) -> None:
        """Measure the benefit of the cells of tables for which it is due."""
        self.has_work = False
        for table, share in self._shares.items():
            if share.due:
                share.due, work = False, self._budget_of[table].rebalancer.work
                missed = MISS_USES * share.offered * share.cell_bytes / share.held
                benefit = self._benefits[table].measure(work, missed)
                share.offered = 0
                share.benefit = None if benefit is None else benefit / share.cell_bytes

    def shrink(self) -> Iterator[tuple[HotTable, RowBlock]]:
        """Give up some of the cells that each table owes; yield the table with the dirty rows that had to leave it.

        A table's memory is given back when the caller asks for the next table, or fails. `has_work` says whether more
        is owed.
        """
        for table, share in self._shares.items():
            if share.owed:
                before, cells = table.nbytes, -(-share.owed // share.cell_bytes)
                cells = min(cells, max(GIVEN_CELLS, table.capacity_rows // GIVEN_PART))
                leaving = table.shrink(cells, share.min_bytes // share.cell_bytes)
                try:
                    yield table, leaving
                finally:
                    self._budget_of[table].shrink(share, before - table.nbytes)
                    self.has_work |= share.owed > 0

    def end(self) -> None:
        """Give the memory of all cells back to the budgets. The tables must not be used afterwards."""
        for table, budget in self._budget_of.items():
            budget.give_back(self._buffer_bytes.pop(table, 0))
            if table in self._shares:
                budget.leave(self._shares[table])
            else:
                budget.give_back(table.nbytes)
