"""`kvemb bench spent`: training steps on tables whose hot rows have grown into the whole budget.

The budget of a long job is spent: rows that are looked up push others out. A step is a `store.lookup` and a
`store.apply_gradients` of all tables. It should read each row that was not hot once, and write each row that it changed
at most once. The peer has the same tables with at most CAPPED_SHARE of the hot rows, so that memory is left for rows on
their way to and from the disk. The keys of a batch are distinct, so that each miss is that of another row.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, ids_of
from kvemb.tools.bench.measure import scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, Rows, Runs, Steps, Tables
from kvemb.tools.bench.results import Comparison, Report, compare
from kvemb.tools.bench.trained import load, open_table

CAPPED_SHARE = 0.6
MAX_READS = MAX_WRITES = 1.05
# Steps in which the hot tables grow, and memory finds its place.
WARM_UP_STEPS = 60


class Cost(NamedTuple):
    """A run's cost: milliseconds a step of CPU and of time, rows read a miss and written an update, and hit rate."""

    cpu: float
    wall: float
    reads: float
    writes: float
    hit_rate: float


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
        ours = _filled(grown, tables, rows, dim, None)
        warm_up = [drawn() for _ in range(-(-WARM_UP_STEPS // steps))]
        for batches in warm_up:
            _train(grown, ours, batches, gradients)
        hot = sum(variable.stats.rows_hot for variable in ours)
        peers = _filled(capped, tables, rows, dim, max(1, int(CAPPED_SHARE * hot / tables)))
        for batches in warm_up:
            _train(capped, peers, batches, gradients)
        work = [drawn() for _ in range(runs)]
        ours_cost, peers_cost = take_turns(
            (
                lambda i: _cost(grown, ours, work[i], gradients),
                lambda i: _cost(capped, peers, work[i], gradients),
            ),
            runs,
        )
        report.facts["hot_rows"] = [sum(each.stats.rows_hot for each in side) for side in (ours, peers)]
    report.lines = _lines(ours_cost, peers_cost)
    return report


def _filled(store: kvemb.Store, tables: int, rows: int, dim: int, hot_rows: int | None) -> list[kvemb.Variable]:
    """Return new tables with all their rows. hot_rows: of each; None: they grow."""
    opened = [open_table(store, dim, hot_rows, f"field{number:03}") for number in range(tables)]
    for variable in opened:
        load(variable, rows)
    return opened


def _train(store: kvemb.Store, variables: list[kvemb.Variable], batches: list[list[Ids]], gradients: Floats) -> None:
    for batch in batches:
        keys: dict[kvemb.Variable | str, Ids] = dict(zip(variables, batch, strict=True))
        store.lookup(keys)
        store.apply_gradients({variable: (ids, gradients[: len(ids)]) for variable, ids in keys.items()})


def _cost(store: kvemb.Store, variables: list[kvemb.Variable], batches: list[list[Ids]], gradients: Floats) -> Cost:
    before, began, cpu = _stats(variables), time.perf_counter(), time.process_time()
    _train(store, variables, batches, gradients)
    wall = until_idle() - began  # including its work on other threads
    cpu, done = time.process_time() - cpu, _stats(variables) - before
    return Cost(
        cpu=1e3 * cpu / len(batches),
        wall=1e3 * wall / len(batches),
        reads=done.cold_reads / max(1, done.misses),
        writes=done.cold_writes / sum(len(ids) for batch in batches for ids in batch),
        hit_rate=done.hit_rate,
    )


def _stats(variables: list[kvemb.Variable]) -> kvemb.Stats:
    return sum((variable.stats for variable in variables), kvemb.Stats())


def _lines(ours: list[Cost], peers: list[Cost]) -> list[Comparison]:
    peer, step = f"hot_rows capped at {CAPPED_SHARE:.0%}", "step of a spent budget"
    one, other = ([[float(number) for number in each] for each in zip(*side, strict=True)] for side in (ours, peers))
    cpu, wall, reads, writes, rates = zip(one, other, strict=True)

    return [
        compare(step, "ms CPU", cpu[0], peer, cpu[1]),
        compare(step, "ms", wall[0], peer, wall[1]),
        compare("rows read", "per distinct miss", reads[0], peer, reads[1]).at_most(MAX_READS),
        compare("rows written", "per distinct update", writes[0], peer, writes[1]).at_most(MAX_WRITES),
        compare("hit rate", "share", rates[0], peer, rates[1]),
    ]
