"""`kvemb bench follow`: hot lookups in a follower that refreshes while another process trains.

Run as a module with the settings as JSON, this file is the process that trains: whenever it reads a line it changes a
share of the rows, makes a point, and prints a line. The two sides take turns: in one the follower refreshes after each
point, in the other it does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Line, Report, Spread

MOST_SLOWER = 3.0
# Lookups that end so soon after a refresh are looked at by themselves.
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
    """Look up random rows of those that are hot, with and without refreshes, and compare the slowest of a hundred."""
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
                sides = _measure(follower, table, trainer, hot, batch, every, points, runs)
        finally:
            trainer.end()
    with_, soon, without, refreshes = sides
    for name, ours in (("lookup p99 with refreshes", with_), (f"within {SOON_SECONDS:g} s of a refresh", soon)):
        ratio = Spread.of(a / b for a, b in zip(ours, without, strict=True))
        bar, met = f"ratio ≤ {MOST_SLOWER:g}", ratio.median <= MOST_SLOWER
        report.lines.append(
            Line(name, "ms", Spread.of(ours), "p99 without refreshes", Spread.of(without), ratio, bar, met)
        )
    report.facts |= {"refresh_s": float(np.median(refreshes)), "refreshes": len(refreshes)}
    return report


def _measure(
    follower: kvemb.Store,
    table: kvemb.Variable,
    trainer: _Trainer,
    hot: int,
    batch: int,
    every: float,
    points: int,
    runs: int,
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return p99 in ms by run: with refreshes, of lookups soon after one, without; and the seconds of each refresh."""
    with_, soon, without, refreshes = [], [], [], []
    for run in range(2 * runs):
        refreshing = bool(run % 2)
        ended: list[tuple[float, float]] = []
        stop = threading.Event()

        def move(refreshing: bool = refreshing, ended: list[tuple[float, float]] = ended, stop=stop) -> None:  # type: ignore[no-untyped-def]
            for _ in range(points):
                time.sleep(every)
                trainer.point()
                if refreshing:
                    began = time.perf_counter()
                    if not follower.refresh():
                        raise AssertionError("a point was made, but the follower does not see it")
                    ended.append((began, time.perf_counter()))
            time.sleep(SOON_SECONDS)
            stop.set()

        mover = threading.Thread(target=move)
        mover.start()
        began, taken = _look_up(table, hot, batch, stop)
        mover.join()
        p99 = 1000 * float(np.percentile(taken, 99))
        if refreshing:
            near = np.zeros(len(taken), np.bool_)
            for first, last in ended:
                near |= (began + taken >= first) & (began < last + SOON_SECONDS)
            with_.append(p99)
            soon.append(1000 * float(np.percentile(taken[near], 99)))
            refreshes += [last - first for first, last in ended]
        else:
            without.append(p99)
            follower.refresh()
            for ids in batches_of_ids(hot, LOAD_BATCH):
                table.lookup(ids)
    return with_, soon, without, refreshes


def _look_up(table: kvemb.Variable, hot: int, batch: int, stop: threading.Event) -> tuple[np.ndarray, np.ndarray]:
    """Look up random hot rows until `stop` is set; returns when each lookup began, and how long it took, in seconds."""
    chance, began, taken = np.random.default_rng(3), [], []
    while not stop.is_set():
        ids = ids_of(chance.integers(0, hot, batch))
        began.append(time.perf_counter())
        table.lookup(ids)
        taken.append(time.perf_counter() - began[-1])
    return np.array(began), np.array(taken)


class _Trainer:
    """A process that trains. It has made its first point when the constructor returns."""

    def __init__(self, settings: dict[str, object]) -> None:
        command = [sys.executable, "-m", __name__, json.dumps(settings)]
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
