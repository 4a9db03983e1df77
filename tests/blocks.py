"""Small rows, tables and executors, for tests of code that moves rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np

import kvemb
from kvemb.backends.cpu import CpuTable
from kvemb.backends.memory_store import MemoryStore
from kvemb.contracts import Mask
from kvemb.handle import inside
from kvemb.memory.budget import Budget
from kvemb.memory.rebalancer import Share
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.partition import Partition, default_partitioner

SCHEMA = Schema(np.dtype(np.int64), np.dtype(np.float32), 2, ())


def rows_of(keys: Any, value: float = 1.0, *, flags: int = 0, score: float = 0.0) -> RowBlock:
    """Return rows of these keys, with all elements equal to value."""
    rows = RowBlock(SCHEMA, len(keys))
    rows.keys[:], rows.values[:], rows.flags[:], rows.scores[:] = keys, value, flags, score
    return rows


def hot_tables_of(cells: int = 32, tables: int = 1) -> HotTables:
    """Return empty hot tables on the CPU, each of a fixed size."""
    made = [CpuTable(SCHEMA, cells, cells) for _ in range(tables)]
    partition = Partition(default_partitioner, np.dtype(np.int64), tables)
    return HotTables(made, partition, [Budget(1 << 24)] * tables, min_rows=None)


def nothing_grows(store: kvemb.Store) -> None:
    """Keep the hot tables in the host's memory as large as they are, as if others had all of it."""

    def refuse(share: Share, nbytes: int) -> bool:
        share.refused = True
        return False

    inside(store).budgets.host.grow = refuse  # type: ignore[method-assign]


class InFlight:
    """What kvemb.tiers.access knows of rows in flight. landed: how often they landed."""

    def __init__(self) -> None:
        self.left, self.expected, self.landed = 0, False, 0

    def land(self) -> None:
        """See RowsInFlight."""
        self.landed += self.left > 0
        self.left = 0


def values_of(rows: RowBlock) -> dict[int, float]:
    """Return the first element of each row, by key."""
    return dict(zip(rows.keys.tolist(), rows.values[:, 0].tolist(), strict=True))


class Later(Executor):
    """Runs submitted work when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(lambda: run(future, lambda: call(*args, **named)))
        return future

    def go(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def run(future: Future[Any], call: Callable[[], Any]) -> None:
    """Set the result of a future to what a call returns, or its exception to what the call raises."""
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)


class Watched(MemoryStore):
    """A cold store that counts reads, and calls a test's function during a read."""

    def __init__(self) -> None:
        super().__init__(SCHEMA)
        self.reads: list[list[int]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def fill(self, rows: RowBlock) -> Mask:
        """See contracts.ColdStore."""
        self.reads.append(rows.keys.tolist())
        found = super().fill(rows)
        self.meanwhile()
        return found
