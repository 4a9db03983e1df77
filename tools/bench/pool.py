"""`kvemb bench pool`: sums of bags of random rows of a hot table, compared with PyTorch's embedding_bag.

The latter gets an array of the same rows, and positions in it; without PyTorch the peer is np.take and np.add.reduceat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, ids_of
from kvemb.tools.bench.measure import compile_seconds, measure_alternately
from kvemb.tools.bench.resident import resident
from kvemb.tools.bench.results import Comparison, Report, compare, compare_cost

MIN_RATIO = 1.5
NUMPY = "np.take and np.add.reduceat"


def run(rows: int, dims: list[int], bags: int, bag: int, batches: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` lookups of `bags` bags each, of `bag` ids each, for each dim."""
    report = Report("pool", {"rows": rows, "dims": dims, "bags": bags, "bag": bag, "batches": batches, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dims[0])
    for dim in dims:
        report.lines += _lines(rows, dim, bags, bag, batches, runs, folder)
    return report


def _lines(
    rows: int, dim: int, bags: int, bag: int, batches: int, runs: int, folder: Path | None
) -> Iterator[Comparison]:
    offsets = np.arange(0, bags * bag, bag)
    with resident(rows, dim, folder) as pair:
        work = [pair.positions(i, batches, bags * bag) for i in range(runs)]
        keys = [[ids_of(positions) for positions in run] for run in work]
        name, pool = _peer(pair.array, offsets)

        def ours(i: int) -> None:
            for batch in keys[i]:
                kvemb.embedding_lookup_sparse(pair.var, batch, offsets, combiner="sum")

        def theirs(i: int) -> None:
            for positions in work[i]:
                pool(positions)

        got = kvemb.embedding_lookup_sparse(pair.var, keys[0][0], offsets, combiner="sum").values
        np.testing.assert_allclose(got, pool(work[0][0]), rtol=1e-4, atol=1e-5)
        measure_alternately((ours, theirs), 1)  # warm up
        before = pair.var.stats
        mine, other = measure_alternately((ours, theirs), runs)
        if (pair.var.stats.misses, pair.var.stats.absent) != (before.misses, before.absent):
            raise AssertionError("some rows were not hot, so the measurement is not valid")
    count = batches * bags * bag
    rates = [[count / each.wall for each in side] for side in (mine, other)]
    cpu = [[each.cpu / count * 1e9 for each in side] for side in (mine, other)]
    yield compare(f"bags of {bag}, dim {dim}", "rows/s", rates[0], name, rates[1], MIN_RATIO)
    yield compare_cost(f"CPU of a pooled row, dim {dim}", "ns a row", cpu[0], name, cpu[1])


def _peer(array: Floats, offsets: Ids) -> tuple[str, Callable[[Ids], Floats]]:
    """Return the peer's name, and a function from positions in the array to pooled rows."""
    try:
        import torch
    except ImportError:
        return NUMPY, lambda positions: np.add.reduceat(np.take(array, positions, axis=0), offsets)
    rows, begins = torch.from_numpy(array), torch.from_numpy(offsets)

    def pool(positions: Ids) -> Floats:
        bags: Floats = torch.nn.functional.embedding_bag(torch.from_numpy(positions), rows, begins, mode="sum").numpy()
        return bags

    return f"embedding_bag of PyTorch {torch.__version__}", pool
