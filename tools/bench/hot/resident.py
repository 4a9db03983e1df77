"""An entirely hot table, and an array of the same rows, for benchmarks that compare calls of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, ids_of, values_of
from kvemb.tools.bench.measure import RunCost, Work, measure_alternately, scratch
from kvemb.tools.bench.results import Comparison, Report
from kvemb.tools.bench.trained import LOAD_BATCH, load


def min_ratio(dim: int) -> float:
    """Return the required share of an array's rows/s."""
    return 0.6 if dim >= 16 else 0.4


class Call(NamedTuple):
    """A call of a run: its number, random positions in the array, with duplicates, and the keys of these rows."""

    number: int
    positions: Ids
    keys: Ids


# Makes a call on the table, or the same on the array.
Side = Callable[[Call], object]


@dataclass(frozen=True)
class Resident:
    """var, in store, and array have the same rows; row r of array is that of the id of rank r."""

    store: kvemb.Store
    var: kvemb.Variable
    array: Floats

    @property
    def dim(self) -> int:
        """The numbers in a row."""
        return self.var.dim

    def calls(self, runs: int, batches: int, batch: int) -> list[list[Call]]:
        """Return `batches` calls of `batch` keys for each run; always the same ones."""
        chance = np.random.default_rng(1)
        drawn = [[chance.integers(0, len(self.array), batch) for _ in range(batches)] for _ in range(runs)]
        return [[Call(at, each, ids_of(each)) for at, each in enumerate(run)] for run in drawn]

    def measure(self, sides: Sequence[Side], calls: list[list[Call]]) -> tuple[list[RunCost], ...]:
        """Return the cost of each side in each run."""

        def make(side: Side, run: int) -> None:
            for call in calls[run]:
                side(call)

        return measure_hot(self.store, [partial(make, side) for side in sides], len(calls))

    def assert_same(self, calls: list[list[Call]]) -> None:
        """Raise AssertionError if the table and the array have different rows where calls were made."""
        touched: Ids = np.concatenate([call.positions for run in calls for call in run])[:1_000_000]
        if not np.array_equal(self.var.lookup(ids_of(touched), touch=False), self.array[touched]):
            raise AssertionError("the table and the array differ")


@contextmanager
def resident(
    rows: int, dim: int, folder: Path | None, optimizer: kvemb.optimizers.Optimizer | None = None
) -> Iterator[Resident]:
    """Yield a loaded pair. The budget has room for empty cells, so that nothing is evicted."""
    budget = budget_of_hot(rows, 4 * dim if optimizer is None else 8 * dim)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget) as store:
        var = store.get_variable("resident", dim=dim, init_size=rows, optimizer=optimizer)
        load(var, rows)
        yield Resident(store, var, array_of(rows, dim))


def by_dim(rows: int, dims: list[int], folder: Path | None, lines: Callable[[Resident], list[Comparison]]) -> Report:
    """Return a report with the lines of a pair for each dim."""
    report = Report()
    for dim in dims:
        with resident(rows, dim, folder) as pair:
            report.lines += lines(pair)
    return report


def array_of(rows: int, dim: int) -> Floats:
    """Return the rows of a loaded table as an array, that of rank r at r."""
    array = np.empty((rows, dim), np.float32)
    for start in range(0, rows, LOAD_BATCH):
        ids = ids_of(np.arange(start, min(start + LOAD_BATCH, rows)))
        array[start : start + len(ids)] = values_of(ids, dim)
    return array


def budget_of_hot(rows: int, row_bytes: int) -> int:
    """Return a memory budget in bytes in which so many rows are all hot, with empty cells."""
    return 3 * rows * (row_bytes + 64) + (256 << 20)


def measure_hot(store: kvemb.Store, sides: Sequence[Work], runs: int) -> tuple[list[RunCost], ...]:
    """Warm up, then return the cost of each side in each run. Raises AssertionError if a row was not hot."""
    measure_alternately(sides, 1)
    before = store.stats
    taken = measure_alternately(sides, runs)
    done = store.stats - before
    if done.misses or done.absent or done.promotions or done.cold_writes:
        raise AssertionError("some rows were not hot, so the measurement is not valid")
    return taken
