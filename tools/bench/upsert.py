"""`kvemb bench upsert`: upserts of random rows of a table that is all hot, beside `array[index] = rows`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvemb.tools.bench.data import Ids, ids_of
from kvemb.tools.bench.measure import compile_seconds, take_turns
from kvemb.tools.bench.resident import assert_same, resident
from kvemb.tools.bench.results import Report, compare

LEAST_RATIO = 0.5


def run(rows: int, dim: int, batch: int, batches: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` upserts each; on both sides the last of duplicate keys wins."""
    report = Report("upsert", {"rows": rows, "dim": dim, "batch": batch, "batches": batches, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dim)
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

        take_turns((ours, array), 1, batch)  # warm up
        promotions, spills = pair.var.stats.promotions, pair.var.stats.spills
        rates, peer = take_turns((ours, array), runs, batches * batch)
        if (pair.var.stats.promotions, pair.var.stats.spills) != (promotions, spills):
            raise AssertionError("some rows were not hot, so the measurement is not valid")
        touched: Ids = np.concatenate([positions for run in work for positions in run])[:1_000_000]
        assert_same(pair, touched)
    report.lines = [compare("upsert", "rows/s", rates, "array[index] = rows", peer, LEAST_RATIO)]
    return report
