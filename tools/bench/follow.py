"""`kvemb bench follow`: hot lookups in a follower that refreshes while another process trains.

Run as a module with the settings as JSON, this file is the process that trains: whenever it reads a line it changes a
share of the rows, makes a point, and prints a line. The two sides take turns: in one the follower refreshes after each
point, in the other it does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Comparison, Report, Spread

MAX_SLOWER = 3.0
# Lookups that end within this time after a refresh are also reported separately.
SOON_SECONDS = 0.1
LOAD_BATCH = 100_000


def run(
    rows: int,
    dim: int,
    hot_rows: int,
    batch: int,
    share: float,
    every: float,
    points: int,
    runs: int,
    budget_mib: int,
    folder: Path | None,
) -> Report:
    """Look up random hot rows, with and without refreshes, and compare the slowest of a hundred lookups."""
    hot = min(hot_rows, rows)
    settings: dict[str, object] = {"rows": rows, "dim": dim, "hot_rows": hot, "batch": batch, "share": share}
    report = Report("follow", {**settings, "every": every, "points": points, "runs": runs, "budget_mib": budget_mib})
    report.facts["compile_s"] = compile_seconds(dim)
    with scratch(folder) as place:
        trainer = _Trainer({"path": str(place / "store"), "rows": rows, "dim": dim, "share": share})
        budget = f"{budget_mib}MiB"
        try:
            with kvemb.open(place / "store", follow=True, memory_budget=budget) as follower:
                table = follower.get_variable("table", hot_rows=2 * hot)
                for ids in batches_of_ids(hot, LOAD_BATCH):
                    table.lookup(ids)
                times = _measure(follower, table, trainer, hot, batch, every, points, runs)
        finally:
            trainer.end()
    sides = ("lookup p99 with refreshes", times.refreshing), (f"within {SOON_SECONDS:g} s of a refresh", times.soon)
    for name, ours in sides:
        ratio = Spread.of(a / b for a, b in zip(ours, times.still, strict=True))
        bar, met = f"ratio ≤ {MAX_SLOWER:g}", ratio.median <= MAX_SLOWER
        report.lines.append(
            Comparison(name, "ms", Spread.of(ours), "p99 without refreshes", Spread.of(times.still), ratio, bar, met)
        )
    report.facts |= {"refresh_s": float(np.median(times.refreshes)), "refreshes": len(times.refreshes)}
    return report


@dataclass
class _Times:
    """The 99th percentile of the lookups of each run, in ms; refreshes: seconds of each refresh.

    still: of runs without refreshes. refreshing: of runs with refreshes; soon: only of their lookups near a refresh.
    """

    still: list[float] = field(default_factory=list)
    refreshing: list[float] = field(default_factory=list)
    soon: list[float] = field(default_factory=list)
    refreshes: list[float] = field(default_factory=list)


def _measure(
    follower: kvemb.Store,
    table: kvemb.Variable,
    trainer: _Trainer,
    hot: int,
    batch: int,
    every: float,
    points: int,
    runs: int,
) -> _Times:
    """Look up hot rows while points are made, without refreshes and with them in turns."""
    times = _Times()
    with ThreadPoolExecutor(1) as beside:
        for _ in range(runs):
            _, taken = _look_up(table, hot, batch, beside.submit(_make_points, trainer, points, every, None))
            times.still.append(_p99_ms(taken))
            follower.refresh()
            for ids in batches_of_ids(hot, LOAD_BATCH):
                table.lookup(ids)
            moving = beside.submit(_make_points, trainer, points, every, follower)
            began, taken = _look_up(table, hot, batch, moving)
            near = np.zeros(len(taken), np.bool_)
            for first, last in moving.result():
                near |= (began + taken >= first) & (began < last + SOON_SECONDS)
                near[min(int((began < last).sum()), len(near) - 1)] = True  # at least one, however busy the machine is
                times.refreshes.append(last - first)
            times.refreshing.append(_p99_ms(taken))
            times.soon.append(_p99_ms(taken[near]))
    return times


def _make_points(
    trainer: _Trainer, points: int, every: float, follower: kvemb.Store | None
) -> list[tuple[float, float]]:
    """Make points, `every` seconds apart; returns when each refresh of the follower, if there is one, began and ended.

    Raises AssertionError if the follower does not see a point.
    """
    refreshes = []
    for _ in range(points):
        time.sleep(every)
        trainer.point()
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


class _Trainer:
    """A process that trains. It has made its first point when the constructor returns."""

    def __init__(self, settings: dict[str, object]) -> None:
        command = [sys.executable, "-P", "-m", __name__, json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def point(self) -> None:
        """Make a point."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise AssertionError("the process that trains has ended")

    def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _train(path: str, rows: int, dim: int, share: float) -> None:
    chance = np.random.default_rng(5)
    with kvemb.open(path, memory_budget="512MiB") as store:
        table = store.get_variable("table", dim=dim, optimizer=kvemb.optimizers.Adagrad(0.1, 0.1))
        for ids in batches_of_ids(rows, LOAD_BATCH):
            table.upsert(ids, values_of(ids, dim))
        store.flush()
        print("ready", flush=True)
        for _ in sys.stdin:
            ids = ids_of(chance.choice(rows, max(1, int(rows * share)), replace=False))
            table.apply_gradients(ids, values_of(ids, dim))
            store.flush()
            print("made", flush=True)


if __name__ == "__main__":
    _train(**json.loads(sys.argv[1]))
