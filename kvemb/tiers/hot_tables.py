"""HotTables, the hot tables of one variable (one per device) seen as one: which table a key is in, growth, totals.

A partition divides the keys over the devices (kvemb.tiers.partition). The variable's lock guards everything here. A
cell number is valid in one table only, so cells are passed with the owners of their keys. Each method of a hot table is
here, over all tables. kvemb.tiers.gpu_tables adds what GPUs need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from kvemb.contracts import DeviceRows, HotTable, PlannedChange, Values
from kvemb.memory.budget import Budget
from kvemb.memory.hot_shares import HotShares
from kvemb.optimizers import Optimizer
from kvemb.restrict import ScoreRule, Scores
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Sums
from kvemb.stats import HOST, TierSize
from kvemb.tiers.partition import Owners, Partition

ALL = slice(None)
_NO_POSITIONS: Positions = np.empty(0, np.int64)


class HotTables:
    """Hot tables with a partition over them.

    tables: those of the partition's devices at first, of_devices. budgets: for each table, the budget that pays for its
    cells, which are reserved. min_rows: the cells that each table keeps when others need memory; None: tables neither
    grow nor shrink. memory: the tables' shares of the budgets. moves: how often rows may have come, left, or changed
    their cells. device_rows: the rows of the only device, for arrays in its memory; None for several devices, or for
    the CPU.
    """

    def __init__(
        self,
        tables: list[HotTable],
        partition: Partition,
        budgets: list[Budget],
        *,
        min_rows: int | None,
    ) -> None:
        self.tables, self.of_devices, self.partition = tables, tables[: partition.devices], partition
        self.schema, self.moves = tables[0].schema, 0
        self.device_rows: DeviceRows | None = None
        self._all_in_one = [(tables[0], ALL)]
        self.memory = HotShares(tables, budgets, min_rows)

    @property
    def size(self) -> int:
        """Rows in all tables."""
        return sum(table.size for table in self.tables)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables' cells."""
        return sum(table.nbytes for table in self.tables)

    def sizes(self) -> dict[str, TierSize]:
        """Return the size of the tables in each memory, by the memory's name."""
        return {HOST: TierSize(self.size, sum(table.capacity_rows for table in self.tables), self.nbytes)}

    def owners(self, keys: Keys) -> Owners:
        """Return the number of each key's table. Raises what Partition.devices_of raises.

        REQUIRES: the variable's lock, as long as the result is used.
        """
        return self.partition.devices_of(keys)

    def by_table(self, owners: Owners) -> list[tuple[HotTable, Any]]:
        """Return each table with the positions of its keys: ALL if all keys are in one table, else indexes.

        Does not call the partitioner, so it cannot fail half-way through a call.
        """
        if owners is None or len(self.tables) == 1:
            return self._all_in_one
        if len(owners) and (owners == owners[0]).all():
            return [(self.tables[int(owners[0])], ALL)]
        found = [(table, np.flatnonzero(owners == number)) for number, table in enumerate(self.tables)]
        return [(table, positions) for table, positions in found if len(positions)]

    # By key.

    def find(self, keys: Keys, owners: Owners) -> Positions:
        """Return each key's cell in its own table, -1 where it is not hot."""
        if owners is None:
            return self.tables[0].find(keys)
        cells = np.empty(len(keys), np.int64)
        for table, positions in self.by_table(owners):
            cells[positions] = table.find(keys[positions])
        return cells

    def lookup(
        self,
        keys: Keys,
        owners: Owners,
        out: Values,
        rule: ScoreRule | None,
        now: float,
        counts: Positions | None = None,
    ) -> Positions:
        """Copy embeddings to out (n, dim) and record uses; return the positions of keys that are not hot, ascending."""
        missing = [_NO_POSITIONS]
        for table, positions in self.by_table(owners):
            if positions is ALL:
                return table.lookup(keys, out, rule, now, counts)
            part = np.empty((len(positions), out.shape[1]), out.dtype)
            absent = table.lookup(keys[positions], part, rule, now, None if counts is None else counts[positions])
            found = np.delete(np.arange(len(positions)), absent)
            out[positions[found]] = part[found]
            missing.append(positions[absent])
        return np.sort(np.concatenate(missing))

    def pool(
        self,
        keys: Keys,
        owners: Owners,
        bags: Bags,
        beside: RowsBeside | None,
        out: Values,
        rule: ScoreRule | None,
        now: float,
    ) -> Positions:
        """Pool bags as contracts.HotTable.pool does.

        If keys are in several tables of devices, keys not in `beside` are missing: rows are summed in order, so no
        table pools its part of a bag, and bags whose rows are all in one table are rare (of bags of 20 keys over two
        devices, one in half a million).
        """
        for table, positions in self.by_table(owners):
            if positions is ALL:
                return table.pool(keys, bags, beside, out, rule, now)
        if beside is None or (beside.at < 0).any():
            out[:] = 0  # for empty bags
            return np.arange(len(keys)) if beside is None else np.flatnonzero(beside.at < 0)
        return self.tables[0].pool(keys, bags, beside, out, None, now)

    def upsert(self, keys: Keys, owners: Owners, values: Values, step: int) -> Positions:
        """Set embeddings, in order; return the positions of keys that are not hot, ascending."""
        missing = [_NO_POSITIONS]
        for table, positions in self.by_table(owners):
            if positions is ALL:
                return table.upsert(keys, values, step)
            missing.append(positions[table.upsert(keys[positions], values[positions], step)])
        return np.sort(np.concatenate(missing))

    def insert(self, rows: RowBlock, owners: Owners, *, by_score: bool = False) -> Iterator[tuple[Keys, RowBlock]]:
        """Insert rows that are not hot, table by table; tables grow as needed.

        Yields the keys offered to a table and the dirty rows that leave for them.
        """
        self.moves += 1
        by_table = self.by_table(owners)
        parts = [(table, rows if at is ALL else rows.select(at)) for table, at in by_table]
        for table, part in parts:
            for leaving in self._insert(table, part, by_score):
                yield part.keys, leaving
            self.memory.grown(table)
            self.memory.offered(table, part.keys, part.scores)

    def _insert(self, table: HotTable, rows: RowBlock, by_score: bool) -> Iterable[RowBlock]:
        """Insert rows into one of the tables; return the dirty rows that leave for them."""
        return [table.insert(rows, by_score=by_score, reserve=self.memory.reserve(table))]

    def make_due_moves(self) -> Iterator[RowBlock]:
        """Make the moves for which memory.has_work: give up cells that are owed; yields the dirty rows that leave."""
        self.moves += 1
        for _, leaving in self.memory.shrink():
            yield leaving

    def remove(self, keys: Keys, owners: Owners) -> None:
        """Empty the cells of keys; ignore keys that are not hot. If memory for the call is lacking, empties none."""
        self.moves += 1
        for table, cells in [(table, table.find(keys[positions])) for table, positions in self.by_table(owners)]:
            table.remove(cells)

    def remove_dirty(self) -> None:
        """Empty the cells of all dirty rows."""
        self.moves += 1
        for table in self.tables:
            for cells in table.flagged(DIRTY):
                table.remove(cells)

    def keys(self) -> Keys:
        """Return the keys of all rows."""
        return np.concatenate([table.keys() for table in self.tables])

    # By cell. cells (n,) come with the owners of their keys; entries < 0 are skipped.

    def _hot(self, cells: Positions, owners: Owners) -> Iterator[tuple[HotTable, Positions]]:
        """Yield each table with the positions of its cells, without entries < 0."""
        for table, positions in self.by_table(owners):
            mine = np.arange(len(cells))[positions]
            yield table, mine[cells[mine] >= 0]

    def read(self, cells: Positions, owners: Owners) -> Iterator[RowBlock]:
        """Yield the rows of cells, table by table."""
        for table, hot in self._hot(cells, owners):
            if len(hot):
                yield table.read(cells[hot])

    def put(self, cells: Positions, owners: Owners, rows: RowBlock) -> None:
        """Overwrite the rows in cells with rows (n) of the same keys."""
        for table, hot in self._hot(cells, owners):
            table.put(cells[hot], rows.select(hot))

    def gather(self, cells: Positions, owners: Owners, out: Values) -> None:
        """Copy the embeddings of cells to out (n, dim)."""
        for table, positions in self.by_table(owners):
            if positions is ALL:
                table.gather(cells, out)
            else:
                part = out[positions]
                table.gather(cells[positions], part)
                out[positions] = part

    def prepare(self, owners: Owners, count: int, change: PlannedChange) -> None:
        """Allocate the buffers that a change of `count` cells or keys needs, before the first table changes.

        So no table runs out of memory after another one has changed. The CPU's need none. Raises MemoryError.
        """

    def assign(self, cells: Positions, owners: Owners, values: Values, step: int) -> None:
        """Set embeddings to values (n, dim)."""
        for table, positions in self.by_table(owners):
            table.assign(cells[positions], values[positions], step)

    def add(self, cells: Positions, owners: Owners, old: Values, new: Values, step: int) -> None:
        """Add new - old, (n, dim); cells may be repeated."""
        for table, positions in self.by_table(owners):
            table.add(cells[positions], old[positions], new[positions], step)

    def apply(
        self, cells: Positions, owners: Owners, optimizer: Optimizer, grads: Values, step: int, sums: Sums, count: int
    ) -> None:
        """Take one optimizer step on distinct cells. grads (·, dim) and sums: see RowKernels.apply."""
        for table, positions in self.by_table(owners):
            part = sums if positions is ALL else sums.of(positions)
            table.apply(cells[positions], optimizer, grads, step, part, count)

    def match(self, cells: Positions, owners: Owners, optimizer: Optimizer, step: int) -> None:
        """Set the slots that depend on the embedding (Optimizer.match)."""
        for table, positions in self.by_table(owners):
            table.match(cells[positions], optimizer, step)

    def read_slot(self, cells: Positions, owners: Owners, number: int, out: Values) -> None:
        """Copy a slot of cells to out (n, width)."""
        for table, hot in self._hot(cells, owners):
            out[hot] = table.read(cells[hot]).slot(number)

    def scores(self, cells: Positions, owners: Owners) -> Scores:
        """Return the scores of cells (n,), NaN where an entry is < 0."""
        scores = np.full(len(cells), np.nan)
        for table, hot in self._hot(cells, owners):
            scores[hot] = table.scores(cells[hot])
        return scores

    def set_scores(self, cells: Positions, owners: Owners, scores: Scores) -> None:
        """Set the scores of cells, which are all in use; the rows become dirty."""
        for table, positions in self.by_table(owners):
            table.set_scores(cells[positions], scores[positions])

    def clear(self) -> None:
        """Empty every cell."""
        self.moves += 1
        for table in self.tables:
            table.clear()
