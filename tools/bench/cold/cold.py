"""`kvemb bench cold`: the process CPU time of a cold row, with hardly any rows hot, for tables of several sizes.

A step looks up and trains uniformly drawn rows, so nearly every row is read from disk, and another one is written back
for it. The time is that of the whole process: Python, RocksDB's reads, and flushes and compactions, for whose end each
window of steps waits. It is divided by the number of rows that were not hot.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import ids_of
from kvemb.tools.bench.measure import scratch, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Folder, Runs, Sizes, Steps
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load, open_table, target, train_step
from kvemb.tools.limits import no_nan

ROWS = [1_000_000, 4_000_000]
MAX_US_PER_ROW = 5.0
MAX_GROWTH = 1.3


def run(
    rows: Sizes = ROWS,
    dim: Dim = 32,
    hot: Annotated[
        float, typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that fits in the hot tier.")
    ] = 0.02,
    batch: Batch = 8_192,
    steps: Steps = 50,
    runs: Runs = 3,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
) -> Report:
    """Measure the CPU time of a cold row that is read, trained and written back, by the size of the table."""
    report = Report()
    for count in rows:
        cost = _microseconds(count, dim, max(1, int(hot * count)), batch, steps, runs, budget_mib, folder)
        report.lines.append(compare(f"{count:,} rows", "us CPU a cold row", cost).at_most(MAX_US_PER_ROW))
    if len(rows) > 1:
        first, last = ([report.lines[at].ours.median] for at in (0, -1))
        line = compare(f"{rows[-1]:,} rows", "us CPU a cold row", last, f"{rows[0]:,} rows", first)
        report.lines.append(line.ratio_at_most(MAX_GROWTH))
    return report


def _microseconds(
    rows: int, dim: int, hot_rows: int, batch: int, steps: int, runs: int, budget_mib: int, folder: Path | None
) -> list[float]:
    chance, pull, costs = np.random.default_rng(5), target(dim), []
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        table = open_table(store, dim, hot_rows)
        load(table, rows)
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
    return costs
