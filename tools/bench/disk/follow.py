"""`kvemb bench follow`: hot lookups in a follower that refreshes while another process trains.

Run as a module with the settings as JSON, this file is the process that trains: whenever it reads a line it changes a
share of the rows, makes a point, and prints a line. The two sides take turns: in one the follower refreshes after each
point, in the other it does not.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Folder, HotRows, Rows, Runs, Share
from kvemb.tools.bench.processes import Asked
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH, load, open_table
from kvemb.tools.limits import MAX_PAUSE_S, MAX_RUNS, no_nan

MAX_SLOWER = 3.0
# Lookups that end within this time after a refresh are also reported separately.
SOON_SECONDS = 0.1


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 1_024,
    share: Share = 0.01,
    every: Annotated[
        float, typer.Option(min=0.01, max=MAX_PAUSE_S, callback=no_nan, help="Seconds between two durable points.")
    ] = 1.0,
    points: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Durable points per run.")] = 5,
    runs: Runs = 3,
    budget_mib: BudgetMib = 512,
    folder: Folder = None,
) -> Report:
    """Look up hot rows in a follower that refreshes while another process trains. Peer: a follower that does not."""
    hot, report = min(hot_rows, rows), Report()
    still, refreshing, soon, refreshes = [], [], [], []
    with scratch(folder) as place, ThreadPoolExecutor(1) as beside:
        trained = json.dumps({"path": str(place / "store"), "rows": rows, "dim": dim, "share": share})
        with Asked("the trainer", ["-m", __name__, trained]) as trainer:
            trainer.ask("load")
            with kvemb.open(place / "store", follow=True, memory_budget=budget_mib << 20) as follower:
                table = follower.get_variable("trained", hot_rows=2 * hot)
                for _ in range(runs):
                    _make_hot(table, hot)
                    made = beside.submit(_make_points, trainer, points, every, None)
                    still.append(_p99_ms(_look_up(table, hot, batch, made)[1]))
                    follower.refresh()
                    _make_hot(table, hot)
                    made = beside.submit(_make_points, trainer, points, every, follower)
                    began, taken = _look_up(table, hot, batch, made)
                    near = np.zeros(len(taken), np.bool_)
                    for first, last in made.result():
                        near |= (began + taken >= first) & (began < last + SOON_SECONDS)
                        near[min(int((began < last).sum()), len(near) - 1)] = (
                            True  # at least one, on a busy machine too
                        )
                        refreshes.append(last - first)
                    refreshing.append(_p99_ms(taken))
                    soon.append(_p99_ms(taken[near]))
    for name, ours in (("lookup p99 with refreshes", refreshing), (f"within {SOON_SECONDS:g} s of a refresh", soon)):
        line = compare(name, "ms", ours, "p99 without refreshes", still)
        report.lines.append(line.ratio_at_most(MAX_SLOWER))
    report.facts |= {"refresh_s": float(np.median(refreshes)), "refreshes": len(refreshes)}
    return report


def _make_hot(table: kvemb.Variable, hot: int) -> None:
    for ids in batches_of_ids(hot, LOAD_BATCH):
        table.lookup(ids)


def _make_points(trainer: Asked, points: int, every: float, follower: kvemb.Store | None) -> list[tuple[float, float]]:
    """Make points, `every` seconds apart; returns when each refresh of the follower, if there is one, began and ended.

    Raises AssertionError if the follower does not see a point.
    """
    refreshes = []
    for _ in range(points):
        time.sleep(every)
        trainer.ask("point")
        if follower is not None:
            began = time.perf_counter()
            if not follower.refresh():
                raise AssertionError("a point was made, but the follower does not see it")
            refreshes.append((began, time.perf_counter()))
    time.sleep(SOON_SECONDS)
    return refreshes


def _look_up(table: kvemb.Variable, hot: int, batch: int, until: Future[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Look up random hot rows until a future is done, at least once, and raise what it raised.

    Returns when each lookup began, and how long it took, in seconds.
    """
    chance = np.random.default_rng(3)
    began: list[float] = []
    taken: list[float] = []
    while not (taken and until.done()):
        ids = ids_of(chance.integers(0, hot, batch))
        began.append(time.perf_counter())
        table.lookup(ids)
        taken.append(time.perf_counter() - began[-1])
    until.result()
    return np.array(began), np.array(taken)


def _p99_ms(seconds: np.ndarray) -> float:
    return 1000 * float(np.percentile(seconds, 99))


def _train(path: str, rows: int, dim: int, share: float) -> None:
    """Load a table at the first line of stdin, and change a share of its rows at every other; answer each line."""
    chance = np.random.default_rng(5)
    with kvemb.open(path, memory_budget="512MiB") as store:
        table = open_table(store, dim)
        for line in sys.stdin:
            if line.strip() == "load":
                load(table, rows)
            else:
                ids = ids_of(chance.choice(rows, max(1, int(rows * share)), replace=False))
                table.apply_gradients(ids, values_of(ids, dim))
            store.flush()
            print("true", flush=True)


if __name__ == "__main__":
    _train(**json.loads(sys.argv[1]))
