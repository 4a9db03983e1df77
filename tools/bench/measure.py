"""Fair timing of several sides on a shared machine: warm up separately, then take turns.

Each run times every side on the same work, one directly after the other; the order alternates between runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

import kvemb

Work = Callable[[int], object]
# A process is idle if its CPU time in an interval of IDLE_SECONDS is below IDLE_SHARE of it.
IDLE_SECONDS, IDLE_SHARE = 0.01, 0.2
# OpenMP's threads, such as PyTorch's, spin for some ms after a side's work.
REST_SECONDS = 0.03
T = TypeVar("T")


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that work() takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@dataclass(frozen=True)
class RunCost:
    """The cost of one run: seconds of time, and CPU seconds of all threads of this process."""

    wall: float
    cpu: float

    def __add__(self, other: RunCost) -> RunCost:
        return RunCost(self.wall + other.wall, self.cpu + other.cpu)


def measure_alternately(sides: Sequence[Work], runs: int) -> tuple[list[RunCost], ...]:
    """Return the cost of each side in each run. Each side is called with the run's number, from 0."""
    return take_turns([partial(cost, side) for side in sides], runs)


def cost(work: Work, run: int) -> RunCost:
    """Return the cost of work(run)."""
    time.sleep(REST_SECONDS)
    before = time.process_time()
    wall = seconds(partial(work, run))
    return RunCost(wall, time.process_time() - before)


def take_turns(sides: Sequence[Callable[[int], T]], runs: int) -> tuple[list[T], ...]:
    """Return what each side returned in each run. Each side is called with the run's number, from 0."""
    taken: tuple[list[T], ...] = tuple([] for _ in sides)
    for run in range(runs):
        order = range(len(sides)) if run % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            taken[side].append(sides[side](run))
    return taken


def until_idle() -> float:
    """Wait until this process's threads, including RocksDB's flushes and compactions, are idle.

    Returns the beginning of the idle time, in seconds of time.perf_counter().
    """
    quiet, since = 0, time.perf_counter()
    while quiet < 3:
        before = time.process_time()
        time.sleep(IDLE_SECONDS)
        quiet = quiet + 1 if time.process_time() - before < IDLE_SHARE * IDLE_SECONDS else 0
        since = since if quiet else time.perf_counter()
    return since


def new_bytes(checkpoint: str | os.PathLike[str], before: str | os.PathLike[str]) -> int:
    """Return the bytes of a checkpoint's files, its manifest included, that the previous one does not share."""
    known = {path.stat().st_ino for path in Path(before).rglob("*")}
    new = [path for path in Path(checkpoint).rglob("*") if path.is_file() and path.stat().st_ino not in known]
    return sum(path.stat().st_size for path in new)


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """Yield an empty directory in folder (None: the system's temporary one) that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvemb-bench-", dir=folder) as path:
        yield Path(path)


def compile_seconds() -> float:
    """Return the seconds of the first calls on a table of one row: compiling, or loading numba's cache."""
    keys, row = np.zeros(1, np.int64), np.ones((1, 8), np.float32)

    def first_calls() -> None:
        with scratch(None) as folder, kvemb.open(folder / "store", memory_budget="64MiB") as store:
            var = store.get_variable(
                "first",
                dim=8,
                restrict_policy=kvemb.FrequencyRestrictPolicy(),
                optimizer=kvemb.optimizers.Adagrad(),
                hot_rows=16,
            )
            var.upsert(keys, row)
            var.apply_gradients(keys, row)
            var.lookup(keys)
            var.prefetch(keys)
            var.lookup(keys, touch=False)

    return seconds(first_calls)
