"""HotTables, the hot tables of one variable (one per device) seen as one: which table a key is in, growth, totals.

A partition divides the keys over the devices (kvemb.tiers.partition). Below tables on GPUs there may be a table
in the host's memory, for rows that they evict. A row there is hot, too, and moves up to its device's table after a use.
The variable's lock guards everything here. A cell number is valid in one table only, so cells are passed with the
owners of their keys. Each method of a hot table is here, over all tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
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
from kvemb.tiers.host_tier import HostTier, together_in
from kvemb.tiers.partition import Owners, Partition, Partitioner

ALL = slice(None)
_NO_POSITIONS: Positions = np.empty(0, np.int64)


class HotTables:
    """Hot tables with a partitioner over them.

    public_dtype: see Partition. budgets: for each table, the budget that pays for its
    cells, which are reserved. min_rows: the cells that each table keeps when others need memory; None: tables neither
    grow nor shrink. memory: the tables' shares of the budgets. host_tier: whether the last table is that of
    kvemb.tiers.host_tier, below the others. moves: how often rows may have come, left, or changed their cells.
    """

    def __init__(
        self,
        tables: list[HotTable],
        partitioner: Partitioner,
        public_dtype: np.dtype[Any],
        budgets: list[Budget],
        *,
        min_rows: int | None,
        host_tier: bool = False,
    ) -> None:
        self.tables, self._devices = tables, len(tables) - host_tier
        self.moves = 0
        self.partition = Partition(partitioner, public_dtype, self._devices)
        self._all_in_one = [(tables[0], ALL)]
        self.memory = HotShares(tables, budgets, min_rows)
        self._host = HostTier(tables[-1], self.memory) if host_tier else None
        self._some_on_gpus = any(table.device_rows is not None for table in tables)

    @property
    def of_devices(self) -> list[HotTable]:
        """The devices' tables, without the host tier's."""
        return self.tables[: self._devices]

    @property
    def device_rows(self) -> DeviceRows | None:
        """The rows of the only device, for arrays in its memory; None for several devices, or for the CPU."""
        return self.tables[0].device_rows if self._devices == 1 else None

    @property
    def on_gpus(self) -> bool:
        """Whether all devices are GPUs, whose tables can move rows while callers' kernels run."""
        return all(table.device_rows is not None for table in self.of_devices)

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
        found: dict[str, TierSize] = {}
        for table in self.tables:
            name = HOST if table.device_rows is None else table.device_rows.device
            found[name] = found.get(name, TierSize()) + TierSize(table.size, table.capacity_rows, table.nbytes)
        return found

    def owners(self, keys: Keys) -> Owners:
        """Return the number of each key's table: its device's, or the host tier's if its row is there now.

        Raises what Partition.devices_of raises. REQUIRES: the variable's lock, as long as the result is used.
        """
        owners = self.partition.devices_of(keys)
        if self._host is None:
            return owners
        owners = np.zeros(len(keys), np.int64) if owners is None else owners
        owners[self._host.has(keys)] = self._devices
        return owners

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
            if self._host is not None and rule is not None:
                self._host.use(table, keys[positions])
            if positions is ALL:
                return table.lookup(keys, out, rule, now, counts)
            part = np.empty((len(positions), out.shape[1]), out.dtype)
            absent = table.lookup(keys[positions], part, rule, now, None if counts is None else counts[positions])
            found = np.delete(np.arange(len(positions)), absent)
            out[positions[found]] = part[found]
            missing.append(positions[absent])
        return np.sort(np.concatenate(missing))

    def lookup_host(self, keys: Keys, out: Values, rule: ScoreRule | None, now: float) -> Positions:
        """Do what lookup does, for keys that are in no device's table."""
        return np.arange(len(keys)) if self._host is None else self._host.lookup(keys, out, rule, now)

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
            if self._host is not None and rule is not None:
                self._host.use(table, keys[positions])
            if positions is ALL:
                return table.pool(keys, bags, beside, out, rule, now)
        if self._host is not None and self._devices == 1 and owners is not None:
            beside = self._host.beside(keys, owners == self._devices, beside, out, rule, now)
            return self.tables[0].pool(keys, bags, beside, out, rule, now)
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

    def insert(
        self, rows: RowBlock, owners: Owners, *, by_score: bool = False, together: bool = False
    ) -> Iterator[tuple[Keys, RowBlock]]:
        """Insert rows that are not hot, table by table; tables grow as needed.

        Yields the keys offered to a table and the dirty rows evicted from it. together: new rows of one GPU do not
        evict each other (contracts.DeviceRows.together).
        """
        self.moves += 1
        by_table = self.by_table(owners)
        parts = [(table, rows if at is ALL else rows.select(at)) for table, at in by_table]
        for table, part in parts:
            reserve, to_host = self.memory.reserve(table), self._host is not None
            with together_in(table) if together else nullcontext():
                leaving = table.insert(part, by_score=by_score, reserve=reserve, clean_too=to_host)
            for left in [leaving] if self._host is None else self._host.move_down(leaving):
                yield part.keys, left
            self.memory.grown(table)
            self.memory.offered(table, part.keys, part.scores)

    @property
    def has_uses(self) -> bool:
        """Whether rows in the host tier were used since the last move_used_up()."""
        return self._host is not None and self._host.has_uses

    def move_used_up(self) -> Iterator[RowBlock]:
        """Move used rows of the host tier up to their devices; yields the dirty rows that leave the hot tier."""
        if self._host is not None and self._host.has_uses:
            self.moves += 1
            yield from self._host.move_used_up(self.of_devices, self.partition.devices_of)

    def move_up(self, keys: Keys) -> Iterator[RowBlock]:
        """Move the host tier's rows of distinct keys up, as they are about to be used; yields as move_used_up()."""
        if self._host is not None:
            self.moves += 1
            yield from self._host.move_up(keys, self.of_devices, self.partition.devices_of)

    def shrink(self) -> Iterator[RowBlock]:
        """Give up the cells that are owed; yields the dirty rows that leave. Rows of GPUs move down first."""
        self.moves += 1
        for table, leaving in self.memory.shrink():
            if self._host is None or table is self._host.table:
                yield leaving
            else:
                yield from self._host.move_down(leaving)

    def refresh_cells(self) -> None:
        """Let the only GPU find the keys of its last lookup again, if rows have moved since."""
        if self.device_rows is not None:
            self.device_rows.refresh_cells()

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
        """Allocate the buffers that a change of `count` cells or keys needs on GPUs, before the first table changes.

        So no table runs out of memory after another one has changed. Raises MemoryError.
        """
        if self._some_on_gpus:
            for table, positions in self.by_table(owners):
                table.prepare(count if positions is ALL else len(positions), change)

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
