"""`kvemb bench upsert`: upserts of random rows of a hot table, compared with `array[index] = rows`, by dim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvemb.tools.bench.data import Ids, ids_of
from kvemb.tools.bench.measure import compile_seconds, measure_alternately
from kvemb.tools.bench.resident import assert_same, min_ratio, resident
from kvemb.tools.bench.results import Comparison, Report, compare, compare_cost

PEER = "array[index] = rows"


def run(rows: int, dims: list[int], batch: int, batches: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` upserts each for each dim; on both sides the last of duplicate keys wins."""
    report = Report("upsert", {"rows": rows, "dims": dims, "batch": batch, "batches": batches, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dims[0])
    for dim in dims:
        report.lines += _lines(rows, dim, batch, batches, runs, folder)
    return report


def _lines(rows: int, dim: int, batch: int, batches: int, runs: int, folder: Path | None) -> Iterator[Comparison]:
    with resident(rows, dim, folder) as pair:
        work = [pair.positions(i, batches, batch) for i in range(runs)]
        keys = [[ids_of(positions) for positions in run] for run in work]
        rng = np.random.default_rng(2)
        values = [rng.standard_normal((batch, dim), dtype=np.float32) for _ in range(batches)]

        def ours(i: int) -> None:
            for batch_keys, rows_in in zip(keys[i], values, strict=True):
                pair.var.upsert(batch_keys, rows_in)

        def array(i: int) -> None:
            for positions, rows_in in zip(work[i], values, strict=True):
                pair.array[positions] = rows_in

        measure_alternately((ours, array), 1)  # warm up
        promotions, writes = pair.var.stats.promotions, pair.var.stats.cold_writes
        taken = measure_alternately((ours, array), runs)
        if (pair.var.stats.promotions, pair.var.stats.cold_writes) != (promotions, writes):
            raise AssertionError("some rows were not hot, so the measurement is not valid")
        touched: Ids = np.concatenate([positions for run in work for positions in run])[:1_000_000]
        assert_same(pair, touched)
    rates, peer = ([batches * batch / each.wall for each in side] for side in taken)
    cpu, peer_cpu = ([each.cpu / batches / batch * 1e9 for each in side] for side in taken)
    yield compare(f"upsert, dim {dim}", "rows/s", rates, PEER, peer, min_ratio(dim))
    yield compare_cost(f"CPU of an upsert, dim {dim}", "ns a row", cpu, PEER, peer_cpu)
