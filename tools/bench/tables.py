"""`kvemb bench tables`: many tables of different sizes in one budget: its share for hot rows, and their hit rate.

The budget has room for a part of the tables' rows. The sizes decrease like those of a recommender's fields, and each
step looks up and trains the same number of ids of each table. The peer is the best fixed split: the rows that have the
most hits in as many bytes as kvemb's hot rows take, known in advance and never moved. With --changing only the smaller
half of the tables is used at first, so that memory has to move; only the last quarter of the steps counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch, until_idle
from kvemb.tools.bench.results import Comparison, Report, Spread
from kvemb.tools.bench.train import LOAD_BATCH, target, train_step

MIN_SHARE, MIN_HITS = 0.6, 0.97
DIMS = (8, 16, 32, 64)


def run(
    tables: int,
    rows: int,
    batch: int,
    steps: int,
    exponent: float,
    budget_mib: int,
    changing: bool,
    folder: Path | None,
) -> Report:
    """Train `tables` tables, the largest of `rows` rows, the k-th of rows / k; the second half of the steps counts."""
    settings: dict[str, object] = {"tables": tables, "rows": rows, "batch": batch, "steps": steps, "zipf": exponent}
    settings |= {"changing": changing}
    report = Report("tables", {**settings, "budget_mib": budget_mib})
    report.facts["compile_s"] = compile_seconds(DIMS[0])
    sizes = [max(1, rows // (number + 1)) for number in range(tables)]
    dims = [DIMS[number % len(DIMS)] for number in range(tables)]
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        opened = [_open(store, f"field{number:02}", dim) for number, dim in enumerate(dims)]
        for table, size, dim in zip(opened, sizes, dims, strict=True):
            for ids in batches_of_ids(size, LOAD_BATCH):
                table.upsert(ids, values_of(ids, dim))
        store.flush()
        until_idle()
        popularity = [Zipf(size, exponent, seed=number) for number, size in enumerate(sizes)]

        def train(count: int, first: int = 0) -> None:
            for _ in range(count):
                for table, draw, dim in list(zip(opened, popularity, dims, strict=True))[first:]:
                    train_step(table, ids_of(draw.sample(batch)), None, target(dim))

        train(steps // 2, first=tables // 2 if changing else 0)
        if changing:
            train(steps // 4)
        before = [table.stats for table in opened]
        train(steps - steps // 2 - (steps // 4 if changing else 0))
        after = [table.stats for table in opened]
    row_bytes = np.array([_row_bytes(dim) for dim in dims])
    hot = np.array([stats.rows_hot for stats in after])
    hits = sum(b.hits - a.hits for a, b in zip(before, after, strict=True))
    keys = hits + sum(b.misses + b.absent - a.misses - a.absent for a, b in zip(before, after, strict=True))
    best = _best_hit_rate(sizes, row_bytes, exponent, int((hot * row_bytes).sum()))
    share = Spread.of([float((hot * row_bytes).sum()) / (budget_mib << 20)])
    rate, peer = Spread.of([hits / keys]), Spread.of([best])
    ratio = Spread.of([hits / keys / best])
    report.lines = [
        Comparison("budget that holds hot rows", "share", share, bar=f"≥ {MIN_SHARE:g}", met=share.median >= MIN_SHARE),
        Comparison(
            "hit rate of all tables", "share", rate, "best fixed split", peer, ratio,
            f"ratio ≥ {MIN_HITS:g}", ratio.median >= MIN_HITS,
        ),
    ]  # fmt: skip
    report.facts["hot_rows"] = [int(count) for count in hot]
    report.facts["rows_in_all"] = sum(sizes)
    return report


def _open(store: kvemb.Store, name: str, dim: int) -> kvemb.Variable:
    policy, optimizer = kvemb.FrequencyRestrictPolicy(), kvemb.optimizers.Adagrad(0.05, 0.1)
    return store.get_variable(name, dim=dim, restrict_policy=policy, optimizer=optimizer)


def _row_bytes(dim: int) -> int:
    """Return the bytes of a hot row with its slot, key, score, step, flags and digest."""
    return 8 * dim + 26


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
