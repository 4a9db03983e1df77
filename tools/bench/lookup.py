"""`kvemb bench lookup`: lookups of random rows of a hot table, compared with np.take on an array, by dim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb.tools.bench.data import ids_of
from kvemb.tools.bench.measure import compile_seconds, measure_alternately
from kvemb.tools.bench.resident import assert_same, min_ratio, resident
from kvemb.tools.bench.results import Comparison, Report, compare, compare_cost

PEER = "np.take, one thread"


def run(rows: int, dims: list[int], batch: int, batches: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` lookups each for each dim, with and without recording uses."""
    report = Report("lookup", {"rows": rows, "dims": dims, "batch": batch, "batches": batches, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dims[0])
    for dim in dims:
        report.lines += _lines(rows, dim, batch, batches, runs, folder)
    return report


def _lines(rows: int, dim: int, batch: int, batches: int, runs: int, folder: Path | None) -> Iterator[Comparison]:
    with resident(rows, dim, folder) as pair:
        work = [pair.positions(i, batches, batch) for i in range(runs)]
        keys = [[ids_of(positions) for positions in run] for run in work]

        def touching(i: int) -> None:
            for batch_keys in keys[i]:
                pair.var.lookup(batch_keys)

        def untouching(i: int) -> None:
            for batch_keys in keys[i]:
                pair.var.lookup(batch_keys, touch=False)

        def array(i: int) -> None:
            for positions in work[i]:
                np.take(pair.array, positions, axis=0)

        measure_alternately((touching, untouching, array), 1)  # warm up
        before = pair.var.stats
        taken = measure_alternately((touching, untouching, array), runs)
        after = pair.var.stats
        if (after.misses, after.absent) != (before.misses, before.absent) or after.hits == before.hits:
            raise AssertionError("some rows were not hot, so the measurement is not valid")
        assert_same(pair, work[0][0])
    touched, untouched, peer = ([batches * batch / each.wall for each in side] for side in taken)
    cpu, _, peer_cpu = ([each.cpu / batches / batch * 1e9 for each in side] for side in taken)
    yield compare(f"lookup, dim {dim}", "rows/s", touched, PEER, peer, min_ratio(dim))
    yield compare(f"lookup, touch=False, dim {dim}", "rows/s", untouched, PEER, peer)
    yield compare_cost(f"CPU of a lookup, dim {dim}", "ns a row", cpu, PEER, peer_cpu)
