"""`kvemb bench prefetch`: training steps on a mostly cold table, with kvemb.torch.prefetching and without.

Between its lookup and its update, each step waits for a simulated model for as long as a step without a model takes, so
half of it is model time. Each side trains its own table with the same batches, in turns, and the rows are compared bit
for bit.
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
# Runs before the timed ones, without a model; the last one measures how long a step takes.
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
        sides = [Side(open_table(store, dim, hot_rows)) for store in (ahead, plain)]
        for side in sides:
            for ids in batches_of_ids(rows, LOAD_BATCH):
                side.variable.upsert(ids, values_of(ids, dim))
            side.variable.resource_handle[0].flush()
        until_idle()
        work = [[torch.from_numpy(ids_of(zipf.sample(batch))) for _ in range(steps)] for _ in range(WARM_UP + runs)]

        def step_seconds(side: Side, batches: list[Any]) -> float:
            start = time.perf_counter()
            side.train(batches, ahead=side is sides[0])
            return (until_idle() - start) / steps  # including its work on RocksDB's threads

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
    """A table, its module and its optimizer. model_s: seconds of a step for the simulated model."""

    def __init__(self, variable: kvemb.Variable) -> None:
        import kvemb.torch as kt

        self.variable, self.model_s = variable, 0.0
        self._table, self._ahead = kt.Embedding(variable), kt.prefetching
        self._optimizer = kt.Optimizer(self._table)

    def train(self, batches: list[Any], *, ahead: bool) -> None:
        """Take a step on each batch of ids."""
        for ids in self._ahead(batches, {self._table: lambda ids: ids}) if ahead else batches:
            rows = self._table(ids)
            time.sleep(self.model_s)  # like a model on an accelerator, which leaves this process's cores free
            rows.backward(rows.detach())  # a gradient without further cost, which makes every difference visible
            self._optimizer.step()
