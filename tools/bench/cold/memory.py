"""`kvemb bench memory`: the peak memory of training, in a separate process for each table size.

The figure is anonymous memory (RssAnon), sampled: pages of mapped files belong to the page cache, which the system can
reclaim at any time; they are shown separately. The process loads the table batch by batch, and trains.
"""

from __future__ import annotations

from pathlib import Path

import kvemb
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, HotRows, Sizes, Steps
from kvemb.tools.bench.processes import result_of
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load, open_table, target, train_step
from kvemb.tools.process_memory import Peaks, peak_bytes

ROWS = [4_000_000, 16_000_000]
OVERHEAD_BYTES = 300_000_000
# Two runs of one size differ by a few percent; a table four times as large may not take more than this factor.
MAX_GROWTH = 1.05


def run(
    rows: Sizes = ROWS,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 8_192,
    steps: Steps = 1000,
    zipf: Exponent = 1.0,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
) -> Report:
    """Measure the peak memory of training, by the size of the table, and compare it with the budget."""
    settings: dict[str, object] = {"dim": dim, "hot_rows": hot_rows, "batch": batch, "steps": steps, "zipf": zipf}
    settings |= {"budget_mib": budget_mib, "folder": None if folder is None else str(folder)}
    report, unit = Report(), "MB of anonymous memory"
    limit = ((budget_mib << 20) + OVERHEAD_BYTES) / 1e6
    peaks: list[float] = []
    for count in rows:
        seen = result_of(__name__, "measure", rows=count, **settings)
        report.facts[f"{count:,} rows"] = seen
        peaks.append(seen["anon_peak_mb"])
        line = compare(f"{count:,} rows", unit, peaks[-1:], "budget + 300 MB", [limit])
        report.lines.append(line.ratio_at_most(1.0))
    if len(rows) > 1:
        line = compare(f"{rows[-1]:,} rows", unit, peaks[-1:], f"{rows[0]:,} rows", peaks[:1])
        report.lines.append(line.ratio_at_most(MAX_GROWTH))
    return report


def measure(
    rows: int, dim: int, hot_rows: int, batch: int, steps: int, zipf: float, budget_mib: int, folder: str | None
) -> dict[str, float]:
    """Load and train in this process; return its peaks in MB (10**6 bytes)."""
    popularity = Zipf(rows, zipf, seed=3)
    with (
        scratch(None if folder is None else Path(folder)) as path,
        Peaks() as peaks,
        kvemb.open(path / "store", memory_budget=budget_mib << 20) as store,
    ):
        var = open_table(store, dim, hot_rows)
        load(var, rows)
        pull, upcoming = target(dim), ids_of(popularity.sample(batch))
        for _ in range(steps):
            ids, upcoming = upcoming, ids_of(popularity.sample(batch))
            train_step(var, ids, upcoming, pull)
    seen = {"peak_mb": peak_bytes(), "anon_peak_mb": peaks.anonymous, "file_peak_mb": peaks.mapped}
    return {name: count / 1e6 for name, count in seen.items()}
