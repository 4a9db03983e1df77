"""`kvemb bench cold`: the process CPU time of a cold row, with hardly any rows hot, for tables of several sizes.

A step looks up and trains uniformly drawn rows, so nearly every row is read from disk, and another one is written back
for it. The time is that of the whole process: Python, RocksDB's reads, and flushes and compactions, for whose end each
window of steps waits. It is divided by the number of rows that were not hot.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch, until_idle
from kvemb.tools.bench.results import Comparison, Report, Spread
from kvemb.tools.bench.train import LOAD_BATCH, open_table, target, train_step

MAX_US_PER_ROW = 5.0
MAX_GROWTH = 1.3


def run(
    rows: list[int], dim: int, hot_share: float, batch: int, steps: int, runs: int, budget_mib: int, folder: Path | None
) -> Report:
    """Measure `runs` windows of `steps` steps at each size. hot_share: the share of the rows that fits the hot tier."""
    settings: dict[str, object] = {"rows": rows, "dim": dim, "hot_share": hot_share, "batch": batch, "steps": steps}
    report = Report("cold", {**settings, "runs": runs, "budget_mib": budget_mib})
    report.facts["compile_s"] = compile_seconds(dim)
    medians = []
    for count in rows:
        cost = _microseconds(count, dim, max(1, int(hot_share * count)), batch, steps, runs, budget_mib, folder)
        medians.append(cost)
        line = Comparison(f"{count:,} rows", "us CPU a cold row", cost, bar=f"≤ {MAX_US_PER_ROW:g}")
        report.lines.append(Comparison(**{**vars(line), "met": cost.median <= MAX_US_PER_ROW}))
    if len(rows) > 1:
        first, last = medians[0], medians[-1]
        ratio = Spread.of([last.median / first.median])
        name, peer = f"{rows[-1]:,} rows", f"{rows[0]:,} rows"
        bar, met = f"ratio ≤ {MAX_GROWTH:g}", ratio.median <= MAX_GROWTH
        report.lines.append(Comparison(name, "us CPU a cold row", last, peer, first, ratio, bar, met))
    return report


def _microseconds(
    rows: int, dim: int, hot_rows: int, batch: int, steps: int, runs: int, budget_mib: int, folder: Path | None
) -> Spread:
    chance, pull, costs = np.random.default_rng(5), target(dim), []
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        table = open_table(store, dim, hot_rows)
        for ids in batches_of_ids(rows, LOAD_BATCH):
            table.upsert(ids, values_of(ids, dim))
        store.flush()
        until_idle()
        for run in range(runs + 1):
            work = [ids_of(chance.integers(0, rows, batch)) for _ in range(steps)]
            missed, began = table.stats.misses, time.process_time()
            for ids in work:
                train_step(table, ids, None, pull)
            until_idle()
            if run:  # the first run fills the hot tier
                costs.append(1e6 * (time.process_time() - began) / (table.stats.misses - missed))
    return Spread.of(costs)
