"""`kvemb bench train`: training steps on a table with a tenth of its rows hot, compared with a loop on rocksdict.

A step is a lookup, a gradient (that pulls every row towards one target) and an Adagrad update. Both sides take the same
steps, in turns, one window each, and their rows are compared at the end. Every other window of kvemb calls `prefetch`
with the next batch's keys, as a data loader can. CPU time is the whole process's, flushes and compactions included.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, measure_alternately, scratch, until_idle
from kvemb.tools.bench.results import Report, compare, compare_cost
from kvemb.tools.bench.train_by_hand import RocksLoop

MIN_RATIO = 4.0
PEER = "rocksdict by hand"
LEARNING_RATE = 0.05
EPSILON = 1e-10
LOAD_BATCH = 65_536


def open_table(store: kvemb.Store, dim: int, hot_rows: int | None, name: str = "trained") -> kvemb.Variable:
    """Return a variable to train. hot_rows: None if it may grow."""
    return store.get_variable(
        name,
        dim=dim,
        restrict_policy=kvemb.FrequencyRestrictPolicy(),
        optimizer=kvemb.optimizers.Adagrad(learning_rate=LEARNING_RATE, initial_accumulator_value=0.0, epsilon=EPSILON),
        hot_rows=hot_rows,
    )


def train_step(var: kvemb.Variable, ids: Ids, upcoming: Ids | None, pull: Floats) -> None:
    """Take one step towards pull (dim,). upcoming: the next batch's keys to prefetch, or None."""
    values = var.lookup(ids)
    if upcoming is not None:
        var.prefetch(upcoming)
    var.apply_gradients(ids, values - pull)


def target(dim: int) -> Floats:
    """Return the row (dim,) that training pulls towards."""
    return np.linspace(-1.0, 1.0, dim, dtype=np.float32)


def run(
    rows: int,
    dim: int,
    hot_rows: int,
    batch: int,
    steps: int,
    runs: int,
    exponent: float,
    budget_mib: int,
    folder: Path | None,
) -> Report:
    """Time `runs` windows of `steps` steps with prefetch and as many without, each beside the peer's same window.

    A window ends when its flushes and compactions have ended, so that they do not slow the other side.
    """
    settings: dict[str, object] = {"rows": rows, "dim": dim, "hot_rows": hot_rows, "batch": batch, "steps": steps}
    report = Report("train", {**settings, "runs": runs, "zipf": exponent, "budget_mib": budget_mib})
    report.facts["compile_s"] = compile_seconds(dim)
    zipf = Zipf(rows, exponent, seed=3)

    def windows(count: int) -> list[list[Ids]]:
        return [[ids_of(zipf.sample(batch)) for _ in range(steps)] for _ in range(count)]

    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        var = open_table(store, dim, hot_rows)
        peer = RocksLoop(path / "peer", dim, LEARNING_RATE, EPSILON, budget_mib << 20)
        for ids in batches_of_ids(rows, LOAD_BATCH):
            var.upsert(ids, values_of(ids, dim))
            peer.load(ids, values_of(ids, dim))
        store.flush()
        peer.flush()
        until_idle()
        work = windows(2)

        pull = target(dim)

        def ours(i: int) -> None:
            upcoming = [*work[i][1:], None] if i % 2 == 0 else [None] * steps
            for ids, following in zip(work[i], upcoming, strict=True):
                train_step(var, ids, following, pull)
            until_idle()

        def theirs(i: int) -> None:
            for ids in work[i]:
                peer.train(ids, pull)
            until_idle()

        measure_alternately((ours, theirs), 2)  # warm up: hot tier, block cache, page cache
        work = windows(2 * runs)
        before = var.stats
        taken = measure_alternately((ours, theirs), 2 * runs)
        after = var.stats
        hits, misses = after.hits - before.hits, after.misses - before.misses
        report.facts["hit_rate"] = hits / max(1, hits + misses)
        report.facts["cold_writes_per_step"] = (after.cold_writes - before.cold_writes) / (2 * runs * steps)
        report.facts["rows_compared"] = _assert_same(var, peer, np.unique(np.concatenate([w[-1] for w in work])))
        peer.close()
    rates, peer_rates = ([steps * batch / each.wall for each in side] for side in taken)
    costs, peer_costs = ([1e3 * each.cpu / steps for each in side] for side in taken)
    for first, how in enumerate(("with prefetch", "no prefetch")):
        least, most = (MIN_RATIO, 1 / MIN_RATIO) if first == 0 else (None, None)
        report.lines += [
            compare(f"step, {how}", "rows/s", rates[first::2], PEER, peer_rates[first::2], least),
            compare_cost(f"CPU, {how}", "ms a step", costs[first::2], PEER, peer_costs[first::2], most),
        ]
    return report


def _assert_same(var: kvemb.Variable, peer: RocksLoop, ids: Ids) -> int:
    """Raise AssertionError unless both have the same rows, up to the rounding of summed gradients."""

    np.testing.assert_allclose(var.lookup(ids, touch=False), peer.values(ids), rtol=1e-4, atol=1e-5)
    return len(ids)
