"""The process of `kvemb bench train --against`: training steps of the version of kvemb that it imports.

It uses only NumPy and those public names of kvemb that all versions have, and is started by its path. Commands are
lines on stdin: "load", "run 3 prefetch", "values"; the answer to each is a line of JSON on stdout.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import kvemb

LOAD_BATCH = 65_536


def until_idle() -> None:
    """Wait until flushes and compactions have ended, as kvemb.tools.bench.measure does."""
    quiet = 0
    while quiet < 3:
        before = time.process_time()
        time.sleep(0.01)
        quiet = quiet + 1 if time.process_time() - before < 0.002 else 0


class TrainedTable:
    """A table in training. settings: dim, hot_rows and budget, and the folder with ids.npy and work.npy."""

    def __init__(self, settings: dict[str, object]) -> None:
        self._folder, self._dim = Path(str(settings["folder"])), int(str(settings["dim"]))
        self._work = np.load(self._folder / "work.npy", mmap_mode="r")  # (windows, steps, batch) int64
        self._pull = np.linspace(-1.0, 1.0, self._dim, dtype=np.float32)
        self._store = kvemb.open(str(settings["store"]), memory_budget=int(str(settings["budget"])))
        self._table = self._store.get_variable(
            "trained",
            dim=self._dim,
            restrict_policy=kvemb.FrequencyRestrictPolicy(),
            optimizer=kvemb.optimizers.Adagrad(learning_rate=0.05, initial_accumulator_value=0.0, epsilon=1e-10),
            hot_rows=int(str(settings["hot_rows"])),
        )

    def load(self) -> dict[str, object]:
        """Insert all rows; return the version's path."""
        ids, chance = np.load(self._folder / "ids.npy"), np.random.default_rng(1)
        for start in range(0, len(ids), LOAD_BATCH):
            part = ids[start : start + LOAD_BATCH]
            self._table.upsert(part, chance.random((len(part), self._dim), np.float32) - np.float32(0.5))
        self._store.flush()
        until_idle()
        return {"path": str(kvemb.__file__), "rows": self._table.size()}

    def run(self, window: int, prefetch: bool) -> dict[str, object]:
        """Take a window's steps; return wall and CPU seconds, flushes and compactions included."""
        batches = [np.array(batch) for batch in self._work[window]]
        wall, cpu = time.perf_counter(), time.process_time()
        for at, ids in enumerate(batches):
            values = self._table.lookup(ids)
            if prefetch and at + 1 < len(batches):
                self._table.prefetch(batches[at + 1])
            self._table.apply_gradients(ids, values - self._pull)
        until_idle()
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    def values(self) -> dict[str, object]:
        """Save the rows of the last window's last batch; return the file."""
        path = f"{self._store.path}.npy"
        np.save(path, self._table.lookup(np.unique(self._work[-1][-1]), touch=False))
        return {"path": path}


def main() -> None:
    """Answer commands until stdin ends."""
    steps = TrainedTable(json.loads(sys.argv[1]))
    for line in sys.stdin:
        words = line.split()
        if words[0] == "run":
            answer = steps.run(int(words[1]), "prefetch" in words)
        else:
            answer = steps.load() if words[0] == "load" else steps.values()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
