"""Training steps of `kvemb bench train`, taken by the version of kvemb that this file imports.

With --against, this file is also started by its path, as the process of a version. So it uses only NumPy and those
public names of kvemb that all versions have. Commands are lines on stdin: "load", "run 3", "values"; the answer to each
is a line of JSON on stdout: the version's path, the cost in seconds, a file with the rows.

Every other window of steps calls `prefetch` with the next batch's keys, as a data loader can.
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

    def rows(self) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
        """Yield ids and rows to begin with."""
        ids, chance = np.load(self._folder / "ids.npy"), np.random.default_rng(1)
        for start in range(0, len(ids), LOAD_BATCH):
            part = ids[start : start + LOAD_BATCH]
            yield part, chance.random((len(part), self._dim), np.float32) - np.float32(0.5)

    def seen(self) -> npt.NDArray[np.int64]:
        """Return the ids of the last batch of each window."""
        return np.unique(self.windows[:, -1])


class TrainedTable:
    """A table in training. store: its path; budget: in bytes."""

    def __init__(self, folder: str, store: str, dim: int, hot_rows: int, budget: int) -> None:
        self._work, self.path = Work(folder, dim), store
        self._store = kvemb.open(store, memory_budget=budget)
        self.table = self._store.get_variable(
            "trained",
            dim=dim,
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
            optimizer=kvemb.optimizers.Adagrad(learning_rate=0.05, initial_accumulator_value=0.0, epsilon=1e-10),
            hot_rows=hot_rows,
        )

    def load(self) -> str:
        """Insert all rows; return the version's path."""
        for ids, rows in self._work.rows():
            self.table.upsert(ids, rows)
        self._store.flush()
        until_idle()
        return str(kvemb.__file__)

    def run(self, window: int) -> None:
        """Take a window's steps, and wait for flushes and compactions."""
        batches = [np.array(batch) for batch in self._work.windows[window]]
        for at, ids in enumerate(batches):
            values = self.table.lookup(ids)
            if window % 2 == 0 and at + 1 < len(batches):
                self.table.prefetch(batches[at + 1])
            self.table.apply_gradients(ids, values - self._work.pull)
        until_idle()

    def values(self) -> npt.NDArray[np.float32]:
        """Return the rows of the ids seen."""
        return np.asarray(self.table.lookup(self._work.seen(), touch=False))

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def answer(table: TrainedTable, command: str, *words: str) -> object:
    """Do what a command says; return the answer."""
    if command == "load":
        return table.load()
    if command == "run":
        wall, cpu = time.perf_counter(), time.process_time()
        table.run(int(words[0]))
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    np.save(f"{table.path}.npy", table.values())
    return f"{table.path}.npy"


def main() -> None:
    """Answer commands until stdin ends."""
    table = TrainedTable(**json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(answer(table, *line.split())), flush=True)


if __name__ == "__main__":
    main()
