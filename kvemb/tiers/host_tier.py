"""The host tier: a hot table in the host's memory below the tables on GPUs. It holds the rows that these evict.

A row is in exactly one table, and is used there. It moves down (GPU to host) when its GPU's table evicts it, and
up (host to GPU) after a use. The variable's lock guards everything here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from kvemb.contracts import HotTable, Values
from kvemb.memory.hot_shares import HotShares
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import RowsBeside
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions

# If a smaller share of a device's cells is in use, its table takes every row that moves up, whatever its score.
_FULL = 0.9


class HostTier:
    """The table below the others. memory: reserves the cells of all tables."""

    def __init__(self, table: HotTable, memory: HotShares) -> None:
        self.table, self._memory = table, memory
        self._used: list[Keys] = []

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which of keys are in this table (n,)."""
        return self.table.find(keys) >= 0

    def use(self, table: HotTable, keys: Keys) -> None:
        """Record uses of keys in a table; if it is the host tier's, their rows may move up."""
        if table is self.table:
            self._used.append(keys)

    def lookup(self, keys: Keys, out: Values, rule: ScoreRule | None, now: float) -> Positions:
        """Do what contracts.HotTable.lookup does, for keys that are in no device's table. Rows used may move up."""
        here = np.flatnonzero(self.has(keys))
        rows = np.empty((len(here), out.shape[1]), out.dtype)
        if rule is not None:
            self.use(self.table, keys[here])
        self.table.lookup(keys[here], rows, rule, now)
        out[here] = rows
        return np.delete(np.arange(len(keys)), here)

    def beside(
        self,
        keys: Keys,
        here: npt.NDArray[np.bool_],
        given: RowsBeside | None,
        out: Values,
        rule: ScoreRule | None,
        now: float,
    ) -> RowsBeside:
        """Append the rows of keys that are in this table to the given ones, for a device to pool.

        here: which keys are (n,). out: an array of the rows' width and dtype. Uses are recorded as by
        contracts.HotTable.lookup.
        """
        at, before = (np.full(len(keys), -1), out[:0]) if given is None else (given.at.copy(), given.values)
        positions = np.flatnonzero(here & (at < 0))
        rows = np.empty((len(positions), out.shape[1]), out.dtype)
        self.table.lookup(keys[positions], rows, rule, now)
        at[positions] = len(before) + np.arange(len(positions))
        return RowsBeside(at, np.concatenate([before, rows]))

    @property
    def has_uses(self) -> bool:
        """Whether rows were used since the last move_used_up()."""
        return bool(self._used)

    def move_down(self, rows: RowBlock) -> Iterator[RowBlock]:
        """Insert, by score, rows that left a device; yield the dirty rows that were evicted for them."""
        try:
            leaving = self.table.insert(rows, by_score=True, reserve=self._memory.reserve(self.table))
        except BaseException:
            yield rows.select(rows.flags & DIRTY != 0)  # in no table now, so the caller spills them
            raise
        yield leaving
        self._memory.offered(self.table, rows.keys, rows.scores)

    def move_used_up(
        self, devices: list[HotTable], device_of: Callable[[Keys], Positions | None]
    ) -> Iterator[RowBlock]:
        """Move rows that were used to their devices, if they outscore the rows that would be evicted there.

        device_of: fn(keys), the number of each key's device; None: all belong to the first. Yields as move_down() does.
        """
        keys, self._used = np.unique(np.concatenate(self._used)), []
        for device, rows in self._by_device(keys, devices, device_of):
            yield from self._move(rows.select(rows.scores > _min_score(device)), device, nullcontext())

    def move_up(
        self, keys: Keys, devices: list[HotTable], device_of: Callable[[Keys], Positions | None]
    ) -> Iterator[RowBlock]:
        """Move the rows of distinct keys, which are about to be used, to their devices; see move_used_up()."""
        for device, rows in self._by_device(keys, devices, device_of):
            yield from self._move(rows, device, together_in(device))

    def _by_device(
        self, keys: Keys, devices: list[HotTable], device_of: Callable[[Keys], Positions | None]
    ) -> Iterator[tuple[HotTable, RowBlock]]:
        """Yield each device's table with the rows of keys that are here and belong to that device."""
        cells = self.table.find(keys)
        rows = self.table.read(cells[cells >= 0])
        numbers = device_of(rows.keys)
        for number, device in enumerate(devices):
            yield device, rows if numbers is None else rows.select(numbers == number)

    def _move(self, rows: RowBlock, device: HotTable, how: AbstractContextManager[None]) -> Iterator[RowBlock]:
        if len(rows):
            with how:
                left = device.insert(rows, reserve=self._memory.reserve(device), clean_too=True)
            self._memory.grown(device)
            self.table.remove(self.table.find(rows.keys))
            yield from self.move_down(left)


def together_in(table: HotTable) -> AbstractContextManager[None]:
    """Return a block in which new rows of a GPU do not evict each other. It does nothing for the host's table."""
    return nullcontext() if table.device_rows is None else table.device_rows.together()


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
