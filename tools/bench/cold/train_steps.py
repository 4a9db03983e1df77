"""Training steps of `kvemb bench train`: the process of a side.

It is started by its path, with --against by another version of kvemb, which it imports. So it uses only NumPy and those
public names of kvemb that all versions have. Commands are lines on stdin: "load", "run 3", "stats", "values". The
answer to each is a line of JSON on stdout: the version's path; the cost in seconds; hits, misses and cold writes; a
file with the rows. Every other window of steps calls `prefetch` with the next batch's keys, as a data loader can.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import kvemb

LOAD_BATCH = 65_536
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


def until_idle() -> None:
    """Wait until flushes and compactions have ended, as kvemb.tools.bench.measure does."""
    quiet = 0
    while quiet < 3:
        before = time.process_time()
        time.sleep(0.01)
        quiet = quiet + 1 if time.process_time() - before < 0.002 else 0


class Work:
    """What all sides do. folder: with ids.npy, of all rows, and work.npy, (windows, steps, batch) int64."""

    def __init__(self, folder: str, dim: int) -> None:
        self._folder, self._dim = Path(folder), dim
        self.windows = np.load(self._folder / "work.npy", mmap_mode="r")
        self.pull = np.linspace(-1.0, 1.0, dim, dtype=np.float32)

    def rows(self) -> Iterator[tuple[Ids, Rows]]:
        """Yield ids and rows to begin with."""
        ids, chance = np.load(self._folder / "ids.npy"), np.random.default_rng(1)
        for start in range(0, len(ids), LOAD_BATCH):
            part = ids[start : start + LOAD_BATCH]
            yield part, chance.random((len(part), self._dim), np.float32) - np.float32(0.5)

    def seen(self) -> Ids:
        """Return the ids of the last batch of each window."""
        return np.unique(self.windows[:, -1])


class Kvemb:
    """A table in training. store: its path; budget: in bytes."""

    def __init__(self, store: str, dim: int, hot_rows: int, budget: int) -> None:
        self._store = kvemb.open(store, memory_budget=budget)
        self._table = self._store.get_variable(
            "trained",
            dim=dim,
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
            optimizer=kvemb.optimizers.Adagrad(learning_rate=0.05, initial_accumulator_value=0.0, epsilon=1e-10),
            hot_rows=hot_rows,
        )
        self.load, self.flush = self._table.upsert, self._store.flush

    def step(self, ids: Ids, upcoming: Ids | None, pull: Rows) -> None:
        """Take a step. upcoming: the next batch, to prefetch, or None."""
        values = self._table.lookup(ids)
        if upcoming is not None:
            self._table.prefetch(upcoming)
        self._table.apply_gradients(ids, values - pull)

    def values(self, ids: Ids) -> Rows:
        """Return the rows of distinct ids."""
        return np.asarray(self._table.lookup(ids, touch=False))

    def stats(self) -> list[int]:
        """Return hits, misses and cold writes."""
        stats = self._table.stats
        return [stats.hits, stats.misses, stats.cold_writes]


class ByHand:
    """The loop of kvemb.tools.bench.train_by_hand, with the same methods."""

    def __init__(self, store: str, dim: int, hot_rows: int, budget: int) -> None:
        from kvemb.tools.bench.train_by_hand import RocksLoop

        self._loop = RocksLoop(Path(store), dim, 0.05, 1e-10, budget)
        self.load, self.flush, self.values = self._loop.load, self._loop.flush, self._loop.values

    def step(self, ids: Ids, upcoming: Ids | None, pull: Rows) -> None:
        """Take a step."""
        self._loop.train(ids, pull)

    def stats(self) -> list[int]:
        """Return nothing that is counted."""
        return [0, 0, 0]


def load(table: Kvemb | ByHand, work: Work) -> str:
    """Insert all rows; return the version's path."""
    for ids, rows in work.rows():
        table.load(ids, rows)
    table.flush()
    until_idle()
    return str(kvemb.__file__)


def run(table: Kvemb | ByHand, work: Work, window: int) -> dict[str, float]:
    """Take a window's steps, and wait for flushes and compactions; return their cost."""
    batches = [np.array(batch) for batch in work.windows[window]]
    wall, cpu = time.perf_counter(), time.process_time()
    for at, ids in enumerate(batches):
        ahead = window % 2 == 0 and at + 1 < len(batches)
        table.step(ids, batches[at + 1] if ahead else None, work.pull)
    until_idle()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def main(folder: str, kind: str, store: str, dim: int, **how: int) -> None:
    """Answer commands until stdin ends. kind: "kvemb" or "by hand"."""
    work, table = Work(folder, dim), (Kvemb if kind == "kvemb" else ByHand)(store, dim, **how)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "load":
            answer: object = load(table, work)
        elif command == "run":
            answer = run(table, work, int(words[0]))
        elif command == "stats":
            answer = table.stats()
        else:
            answer = f"{store}.npy"
            np.save(f"{store}.npy", table.values(work.seen()))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
