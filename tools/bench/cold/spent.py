"""`kvemb bench spent`: training steps on tables whose hot rows have grown into the whole budget.

The budget of a long job is spent: rows that are looked up push others out. A step is a `store.lookup` and a
`store.apply_gradients` of all tables. It should read each row that was not hot once, and write each row that it changed
at most once. The peer has the same tables with at most CAPPED_SHARE of the hot rows, so that memory is left for rows on
their way to and from the disk. The keys of a batch are distinct, so that each miss is that of another row.
"""

from __future__ import annotations

import time

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, ids_of
from kvemb.tools.bench.measure import scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, Rows, Runs, Steps, Tables
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load, open_table

CAPPED_SHARE = 0.6
MAX_READS = MAX_WRITES = 1.05
# What is measured in a run: its name, its unit, and the most that it may be.
FIGURES = [
    ("step of a spent budget", "ms CPU", None),
    ("step of a spent budget", "ms", None),
    ("rows read", "per distinct miss", MAX_READS),
    ("rows written", "per distinct update", MAX_WRITES),
    ("hit rate", "share", None),
]
# Steps in which the hot tables grow, and memory finds its place.
WARM_UP_STEPS = 60


def run(
    tables: Tables = 26,
    rows: Rows = 40_000,
    dim: Dim = 16,
    batch: Batch = 1_024,
    steps: Steps = 40,
    zipf: Exponent = 0.0,
    budget_mib: BudgetMib = 32,
    runs: Runs = 5,
    folder: Folder = None,
) -> Report:
    """Train tables whose hot rows have grown into the budget. Peer: the same with memory left over.

    --rows and --batch are of each table.
    """
    report = Report()
    draw = Zipf(rows, zipf, seed=1)
    gradients = np.ones((batch, dim), np.float32)

    def drawn() -> list[list[Ids]]:
        return [[ids_of(np.unique(draw.sample(batch))) for _ in range(tables)] for _ in range(steps)]

    with (
        scratch(folder) as path,
        kvemb.open(path / "grown", memory_budget=budget_mib << 20) as grown,
        kvemb.open(path / "capped", memory_budget=budget_mib << 20) as capped,
    ):
        warm_up = [drawn() for _ in range(-(-WARM_UP_STEPS // steps))]
        _fill(grown, tables, rows, dim, None)
        for batches in warm_up:
            _train(grown, batches, gradients)
        _fill(capped, tables, rows, dim, max(1, int(CAPPED_SHARE * grown.stats.rows_hot / tables)))
        for batches in warm_up:
            _train(capped, batches, gradients)
        work = [drawn() for _ in range(runs)]
        sides = [lambda i, store=store: _figures(store, work[i], gradients) for store in (grown, capped)]
        taken = take_turns(sides, runs)
        report.facts["hot_rows"] = [store.stats.rows_hot for store in (grown, capped)]
    peer = f"hot_rows capped at {CAPPED_SHARE:.0%}"
    for at, (name, unit, most) in enumerate(FIGURES):
        ours, theirs = ([figures[at] for figures in side] for side in taken)
        report.lines.append(compare(name, unit, ours, peer, theirs).at_most(most))
    return report


def _fill(store: kvemb.Store, tables: int, rows: int, dim: int, hot_rows: int | None) -> None:
    """Make tables with all their rows. hot_rows: of each; None: they grow."""
    for number in range(tables):
        load(open_table(store, dim, hot_rows, f"field{number:03}"), rows)


def _train(store: kvemb.Store, batches: list[list[Ids]], gradients: Floats) -> None:
    for batch in batches:
        keys: dict[kvemb.Variable | str, Ids] = dict(zip(store.variables.values(), batch, strict=True))
        store.lookup(keys)
        store.apply_gradients({variable: (ids, gradients[: len(ids)]) for variable, ids in keys.items()})


def _figures(store: kvemb.Store, batches: list[list[Ids]], gradients: Floats) -> list[float]:
    """Train, and return the FIGURES."""
    before, began, cpu = store.stats, time.perf_counter(), time.process_time()
    _train(store, batches, gradients)
    wall = until_idle() - began  # including its work on other threads
    cpu, done = time.process_time() - cpu, store.stats - before
    updates = sum(len(ids) for batch in batches for ids in batch)
    reads, writes = done.cold_reads / max(1, done.misses), done.cold_writes / updates
    return [1e3 * cpu / len(batches), 1e3 * wall / len(batches), reads, writes, done.hit_rate]
