"""Hot tables on GPUs: what they need beyond kvemb.tiers.hot_tables.

Below GPUs' tables there may be a table in the host's memory, which holds the rows that these evict. A row is in exactly
one table, and is used there. It moves down (GPU to host) when its GPU's table evicts it, and up (host to GPU) after a
use. The variable's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt

from kvemb.contracts import HotTable, PlannedChange, Values
from kvemb.memory.budget import Budget
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions
from kvemb.stats import HOST, TierSize
from kvemb.tiers.hot_tables import ALL, HotTables
from kvemb.tiers.partition import Owners, Partition

# If a smaller share of a device's cells is in use, its table takes every row that moves up, whatever its score.
_FULL = 0.9


class GpuTables(HotTables):
    """Hot tables of which some are on GPUs. used: keys of rows below GPUs that were used since rows last moved up."""

    def __init__(
        self, tables: list[HotTable], partition: Partition, budgets: list[Budget], *, min_rows: int | None
    ) -> None:
        super().__init__(tables, partition, budgets, min_rows=min_rows)
        self.used: list[Keys] = []
        if len(self.of_devices) == 1:
            self.device_rows = tables[0].device_rows
        for table in tables:
            if table.device_rows is not None:
                table.device_rows.account(partial(self.memory.use_for_buffers, table))

    def sizes(self) -> dict[str, TierSize]:
        found: dict[str, TierSize] = {}
        for table in self.tables:
            name = HOST if table.device_rows is None else table.device_rows.device
            found[name] = found.get(name, TierSize()) + TierSize(table.size, table.capacity_rows, table.nbytes)
        return found

    def prepare(self, owners: Owners, count: int, change: PlannedChange) -> None:
        for table, positions in self.by_table(owners):
            table.prepare(count if positions is ALL else len(positions), change)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Rows that are inserted into a GPU's table in the block do not evict each other (DeviceRows.together)."""
        with ExitStack() as block:
            for table in self.of_devices:
                if table.device_rows is not None:
                    block.enter_context(table.device_rows.together())
            yield

    # What is below the GPUs: here nothing.

    def lookup_host(self, keys: Keys, out: Values, rule: ScoreRule | None, now: float) -> Positions:
        """Do what lookup does, for keys that are in no device's table."""
        return np.arange(len(keys))

    def move_up(self, keys: Keys) -> Iterator[RowBlock]:
        """Move rows of distinct keys up, as they are about to be used; yields as make_due_moves()."""
        yield from ()


class TieredGpuTables(GpuTables):
    """Tables on GPUs, and after them one in the host's memory, below them."""

    @property
    def _below(self) -> HotTable:
        return self.tables[-1]

    def owners(self, keys: Keys) -> Owners:
        owners = super().owners(keys)
        owners = np.zeros(len(keys), np.int64) if owners is None else owners
        owners[self._below.find(keys) >= 0] = len(self.of_devices)
        return owners

    def _use(self, keys: Keys) -> None:
        """Record uses of keys whose rows are below: the next call moves them up."""
        self.used.append(keys)
        self.memory.has_work = True

    def _are_below(self, owners: Owners) -> npt.NDArray[np.bool_]:
        return np.zeros(0, np.bool_) if owners is None else owners == len(self.of_devices)

    def lookup(
        self,
        keys: Keys,
        owners: Owners,
        out: Values,
        rule: ScoreRule | None,
        now: float,
        counts: Positions | None = None,
    ) -> Positions:
        missing = super().lookup(keys, owners, out, rule, now, counts)
        if rule is not None and (below := self._are_below(owners)).any():
            self._use(keys[below])
        return missing

    def lookup_host(self, keys: Keys, out: Values, rule: ScoreRule | None, now: float) -> Positions:
        here = np.flatnonzero(self._below.find(keys) >= 0)
        rows = np.empty((len(here), out.shape[1]), out.dtype)
        if rule is not None:
            self._use(keys[here])
        self._below.lookup(keys[here], rows, rule, now)
        out[here] = rows
        return np.delete(np.arange(len(keys)), here)

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
        below = self._are_below(owners)
        if rule is not None and below.any():
            self._use(keys[below])
        if len(self.of_devices) == 1 and below.any() and not below.all():
            # The device pools its rows with copies of those below, whose uses are recorded here.
            at, before = (np.full(len(keys), -1), out[:0]) if beside is None else (beside.at.copy(), beside.values)
            positions = np.flatnonzero(below & (at < 0))
            rows = np.empty((len(positions), out.shape[1]), out.dtype)
            self._below.lookup(keys[positions], rows, rule, now)
            at[positions] = len(before) + np.arange(len(positions))
            beside = RowsBeside(at, np.concatenate([before, rows]))
            return self.tables[0].pool(keys, bags, beside, out, rule, now)
        return super().pool(keys, owners, bags, beside, out, rule, now)

    # Moving rows. Each of these yields the dirty rows that leave all tables.

    def _insert(self, table: HotTable, rows: RowBlock, by_score: bool) -> Iterator[RowBlock]:
        reserve = self.memory.reserve(table)
        return self._move_down(table.insert(rows, by_score=by_score, reserve=reserve, clean_too=True))

    def make_due_moves(self) -> Iterator[RowBlock]:
        self.moves += 1
        if self.used:
            keys, self.used = np.unique(np.concatenate(self.used)), []
            for device, rows in self._by_device(keys):
                yield from self._move(rows.select(rows.scores > _min_score(device)), device)
        for table, leaving in self.memory.shrink():
            yield from [leaving] if table is self._below else self._move_down(leaving)

    def move_up(self, keys: Keys) -> Iterator[RowBlock]:
        self.moves += 1
        for device, rows in self._by_device(keys):
            yield from self._move(rows, device)

    def _by_device(self, keys: Keys) -> Iterator[tuple[HotTable, RowBlock]]:
        """Yield each device's table with the rows of keys that are below it."""
        numbers = self.partition.devices_of(keys)
        for number, device in enumerate(self.of_devices):
            # Found anew for each device: what moved down from the one before may have evicted some of them.
            cells = self._below.find(keys if numbers is None else keys[numbers == number])
            yield device, self._below.read(cells[cells >= 0])

    def _move(self, rows: RowBlock, device: HotTable) -> Iterator[RowBlock]:
        """Move rows up to a device."""
        if len(rows):
            left = device.insert(rows, reserve=self.memory.reserve(device), clean_too=True)
            self.memory.grown(device)
            self._below.remove(self._below.find(rows.keys))
            yield from self._move_down(left)

    def _move_down(self, rows: RowBlock) -> Iterator[RowBlock]:
        """Insert, by score, rows that left a device."""
        try:
            leaving = self._below.insert(rows, by_score=True, reserve=self.memory.reserve(self._below))
        except BaseException:
            yield rows.select(rows.flags & DIRTY != 0)  # in no table now, so the caller spills them
            raise
        yield leaving
        self.memory.offered(self._below, rows.keys, rows.scores)


def _min_score(device: HotTable) -> float:
    """Return an estimate, from a sample, of the lowest score in a device's table; -inf if the table has room.

    If there is no memory for the sample, returns inf, so that nothing outscores its rows.
    """
    if device.step_rows or device.size < _FULL * device.capacity_rows:
        return -np.inf
    try:
        return float(np.min(device.sample(0.5, device.cells_per_bucket)[1], initial=np.inf))
    except MemoryError:
        return np.inf
