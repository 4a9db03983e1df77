"""`kvemb bench tables`: many tables of different sizes in one budget: its share for hot rows, and their hit rate.

The budget has room for a part of the tables' rows. The sizes decrease like those of a recommender's fields, and each
step looks up and trains the same number of ids of each table. The peer is the best fixed split: the rows that have the
most hits in as many bytes as kvemb's hot rows take, known in advance and never moved.
"""

from __future__ import annotations

import numpy as np

import kvemb
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.measure import scratch, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Exponent, Folder, Rows, Steps, Tables
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import cell_bytes, load, open_table, target, train_step

MIN_SHARE, MIN_HITS = 0.6, 0.97
DIMS = (8, 16, 32, 64)


def run(
    tables: Tables = 26,
    rows: Rows = 1_000_000,
    batch: Batch = 4_096,
    steps: Steps = 400,
    zipf: Exponent = 1.0,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
) -> Report:
    """Train many tables in one budget. Peer, for the hit rate: the best fixed split of the memory.

    The largest table has --rows rows, the k-th as many divided by k. The second half of the steps counts.
    """
    report = Report()
    sizes = [max(1, rows // (number + 1)) for number in range(tables)]
    dims = [DIMS[number % len(DIMS)] for number in range(tables)]
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        opened = [open_table(store, dim, name=f"field{number:02}") for number, dim in enumerate(dims)]
        for table, size in zip(opened, sizes, strict=True):
            load(table, size)
        store.flush()
        until_idle()
        popularity = [Zipf(size, zipf, seed=number) for number, size in enumerate(sizes)]

        def train(count: int) -> None:
            for _ in range(count):
                for table, draw, dim in zip(opened, popularity, dims, strict=True):
                    train_step(table, ids_of(draw.sample(batch)), None, target(dim))

        train(steps // 2)
        before = store.stats
        train(steps - steps // 2)
        done, hot = store.stats - before, np.array([table.stats.rows_hot for table in opened])
    row_bytes = np.array([cell_bytes(dim) for dim in dims])
    held = int((hot * row_bytes).sum())
    best = _best_hit_rate(sizes, row_bytes, zipf, held)
    rate = compare("hit rate of all tables", "share", [done.hit_rate], "best fixed split", [best])
    report.lines = [
        compare("budget that holds hot rows", "share", [held / (budget_mib << 20)]).at_least(MIN_SHARE),
        rate.ratio_at_least(MIN_HITS),
    ]
    report.facts |= {"hot_rows": hot.tolist(), "rows_in_all": sum(sizes)}
    return report


def _best_hit_rate(sizes: list[int], row_bytes: np.ndarray, exponent: float, nbytes: int) -> float:
    """Return the hit rate of the rows with the most hits per byte that fit in nbytes."""
    hits, costs = [], []
    for size, cost in zip(sizes, row_bytes, strict=True):
        weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
        hits.append(weights / weights.sum() / len(sizes))
        costs.append(np.full(size, cost))
    all_hits, all_costs = np.concatenate(hits), np.concatenate(costs)
    order = np.argsort(-all_hits / all_costs)
    held = np.cumsum(all_costs[order]) <= nbytes
    return float(all_hits[order][held].sum())
