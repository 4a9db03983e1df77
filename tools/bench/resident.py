"""An entirely hot table, and an array of the same rows, for `bench lookup` and `bench upsert`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import scratch

LOAD_BATCH = 65_536


def min_ratio(dim: int) -> float:
    """Return the required share of an array's rows/s."""
    return 0.6 if dim >= 16 else 0.4


@dataclass(frozen=True)
class Resident:
    """var and array have the same rows; row r of array is that of the id of rank r."""

    var: kvemb.Variable
    array: Floats
    seed: int = 1

    def positions(self, run: int, batches: int, batch: int) -> list[Ids]:
        """Return `batches` arrays (batch,) of random positions in array, with duplicates; the same for the same run."""
        rng = np.random.default_rng((self.seed, run))
        return [rng.integers(0, len(self.array), batch) for _ in range(batches)]


@contextmanager
def resident(rows: int, dim: int, folder: Path | None) -> Iterator[Resident]:
    """Yield a loaded pair. The budget has room for empty cells, so that nothing is evicted."""
    budget = 3 * rows * (4 * dim + 64) + (256 << 20)
    array = np.empty((rows, dim), np.float32)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget) as store:
        var = store.get_variable("resident", dim=dim, init_size=rows)
        for start, ids in zip(range(0, rows, LOAD_BATCH), batches_of_ids(rows, LOAD_BATCH), strict=True):
            array[start : start + len(ids)] = values_of(ids, dim)
            var.upsert(ids, array[start : start + len(ids)])
        yield Resident(var, array)


def assert_same(pair: Resident, positions: Ids) -> None:
    """Raise AssertionError unless the table and the array hold the same rows at these positions."""
    if not np.array_equal(pair.var.lookup(ids_of(positions), touch=False), pair.array[positions]):
        raise AssertionError("the table and the array differ")
