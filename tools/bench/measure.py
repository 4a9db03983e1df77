"""Timing two things fairly on a machine that is shared: warm up apart, then take turns.

Each run times ours and the peer on the same work, one right after the other, and the one that goes first alternates.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import kvemb

Work = Callable[[int], object]
# Idle is who works for less than this share of this long.
IDLE_SECONDS, IDLE_SHARE = 0.01, 0.2


def seconds(work: Work, run: int) -> float:
    """Return how long work(run) takes."""
    start = time.perf_counter()
    work(run)
    return time.perf_counter() - start


def take_turns(sides: tuple[Work, ...], runs: int, rows_per_run: int) -> tuple[list[float], ...]:
    """Return rows per second of each side in each run. Each side is called with the run's number, 0 .. runs - 1."""
    rates: tuple[list[float], ...] = tuple([] for _ in sides)
    for run in range(runs):
        order = range(len(sides)) if run % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            rates[side].append(rows_per_run / seconds(sides[side], run))
    return rates


def until_idle() -> None:
    """Wait until this process's threads, RocksDB's flushes and compactions among them, have stopped working."""
    quiet = 0
    while quiet < 3:
        before = time.process_time()
        time.sleep(IDLE_SECONDS)
        quiet = quiet + 1 if time.process_time() - before < IDLE_SHARE * IDLE_SECONDS else 0


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """Yield an empty directory inside folder (default: the system's) that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvemb-bench-", dir=folder) as path:
        yield Path(path)


def compile_seconds(dim: int) -> float:
    """Return how long the first calls take on a table of one row: compiling, or loading what numba has cached."""
    keys, row = np.zeros(1, np.int64), np.ones((1, dim), np.float32)

    def first_calls(_: int) -> None:
        with scratch(None) as folder, kvemb.open(folder / "store", memory_budget="64MiB") as store:
            var = store.get_variable(
                "first",
                dim=dim,
                restrict_policy=kvemb.FrequencyRestrictPolicy(),
                optimizer=kvemb.optimizers.Adagrad(),
                hot_rows=16,
            )
            var.upsert(keys, row)
            var.apply_gradients(keys, row)
            var.lookup(keys)
            var.prefetch(keys)
            var.lookup(keys, touch=False)

    return seconds(first_calls, 0)
