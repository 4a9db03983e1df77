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
from kvemb.tools.bench.measure import compile_seconds, scratch, take_timed_turns, until_idle
from kvemb.tools.bench.pytorch import import_torch
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.bench.train import LOAD_BATCH, open_table

MOST_RATIO = 0.75


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
        work = [[torch.from_numpy(ids_of(zipf.sample(batch))) for _ in range(steps)] for _ in range(runs + 2)]

        def prefetched(i: int) -> None:
            sides[0].train(work[i], ahead=True)
            until_idle()

        def alone(i: int) -> None:
            sides[1].train(work[i], ahead=False)
            until_idle()

        taken = take_timed_turns((prefetched, alone), 2)
        model_s = taken[1][-1].wall / steps
        for side in sides:
            side.model_s = model_s
        taken = take_timed_turns((lambda i: prefetched(i + 2), lambda i: alone(i + 2)), runs)
        for one, other in zip(*(side.variable.export(with_slots=True)[:2] for side in sides), strict=True):
            np.testing.assert_array_equal(one, other)
        report.facts |= {"model_ms": 1e3 * model_s, "rows_compared": sides[0].variable.size()}
    walls = [[1e3 * each.wall / steps for each in side] for side in taken]
    report.lines = [compare_cost("step with prefetching", "ms", walls[0], "without", walls[1], MOST_RATIO)]
    return report


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
            rows.square().sum().backward()
            self._optimizer.step()
