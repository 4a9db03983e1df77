"""`kvemb bench prefetch`: steps of a model on a table that is mostly cold, with kvemb.torch.prefetching and without.

Between a lookup and its update, each step spends as long in a model as a step without one takes: half of it is model
time. Both sides train a table of their own with the same batches, in turns, and their rows are compared bit for bit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch, until_idle
from kvemb.tools.bench.pytorch import import_torch
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.bench.train import LOAD_BATCH, open_table

MAX_RATIO = 0.75
# Runs before those that count. They have no model; the last one says how long a step takes.
WARM_UP = 2


def run(
    rows: int, dim: int, hot_rows: int, batch: int, steps: int, runs: int, exponent: float, folder: Path | None
) -> Report:
    """Time `runs` runs of `steps` steps of each side. Raises BadInput without PyTorch."""
    settings: dict[str, object] = {"rows": rows, "dim": dim, "hot_rows": hot_rows, "batch": batch, "steps": steps}
    report = Report("prefetch", {**settings, "runs": runs, "zipf": exponent})
    torch = import_torch(report)
    report.facts["compile_s"] = compile_seconds(dim)
    zipf = Zipf(rows, exponent, seed=3)
    budget = 4 * hot_rows * (8 * dim + 64) + (64 << 20)
    with (
        scratch(folder) as path,
        kvemb.open(path / "ahead", memory_budget=budget) as ahead,
        kvemb.open(path / "plain", memory_budget=budget) as plain,
    ):
        sides = [Side(torch, open_table(store, dim, hot_rows)) for store in (ahead, plain)]
        for side in sides:
            for ids in batches_of_ids(rows, LOAD_BATCH):
                side.variable.upsert(ids, values_of(ids, dim))
            side.variable.resource_handle[0].flush()
        until_idle()
        work = [[torch.from_numpy(ids_of(zipf.sample(batch))) for _ in range(steps)] for _ in range(WARM_UP + runs)]

        def step_seconds(side: Side, batches: list[Any]) -> float:
            start = time.perf_counter()
            side.train(batches, ahead=side is sides[0])
            return (until_idle() - start) / steps  # with what it left to RocksDB's threads

        walls: list[list[float]] = [[], []]
        for batches in work:
            order = (0, 1) if len(walls[0]) % 2 == 0 else (1, 0)
            for number in order:
                walls[number].append(step_seconds(sides[number], batches))
            if len(walls[0]) == WARM_UP:
                sides[0].model_s = sides[1].model_s = model_s = walls[1][-1]
        for one, other in zip(*(_columns(side.variable) for side in sides), strict=True):
            np.testing.assert_array_equal(one, other)
        report.facts |= {"model_ms": 1e3 * model_s, "rows_compared": sides[0].variable.size()}
    with_it, without = ([1e3 * each for each in side[WARM_UP:]] for side in walls)
    report.lines = [compare_cost("step with prefetching", "ms", with_it, "without", without, MAX_RATIO)]
    return report


def _columns(variable: kvemb.Variable) -> list[Any]:
    """Return the keys, the rows, each slot and the scores."""
    exported: Any = variable.export(with_slots=True, with_scores=True)
    keys, rows, slots, scores = exported
    return [keys, rows, *slots.values(), scores]


class Side:
    """A table, its module and its optimizer. model_s: seconds that a model takes in a step."""

    def __init__(self, torch: Any, variable: kvemb.Variable) -> None:
        import kvemb.torch as kt

        self.variable, self.model_s = variable, 0.0
        self._table, self._ahead = kt.Embedding(variable), kt.prefetching
        self._optimizer = kt.Optimizer(self._table)

    def train(self, batches: list[Any], *, ahead: bool) -> None:
        """Take a step on each batch of ids."""
        for ids in self._ahead(batches, {self._table: lambda ids: ids}) if ahead else batches:
            rows = self._table(ids)
            time.sleep(self.model_s)  # as a model on an accelerator: this process's cores are free
            rows.backward(rows.detach())  # a gradient that costs nothing here, and shows every difference
            self._optimizer.step()
