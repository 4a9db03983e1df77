"""`kvemb bench prefetch`: training steps on mostly cold tables, with kvemb.torch.prefetching and without.

Between its lookups and its updates, each step waits for a simulated model for as long as a step without a model takes,
so half of it is model time. Each side trains its own tables with the same batches, in turns, and the rows are compared
bit for bit. One table has `hot_rows` cells, and memory to spare; several grow in a budget of about as many for each, so
that reads ahead need memory that others have.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch, until_idle
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.bench.torch import import_torch
from kvemb.tools.bench.train import LOAD_BATCH, open_table

MAX_RATIO = 0.75
# Runs before the timed ones, without a model; the last one measures how long a step takes.
WARM_UP = 2


def run(
    rows: int,
    dim: int,
    hot_rows: int,
    batch: int,
    steps: int,
    runs: int,
    exponent: float,
    tables: int,
    folder: Path | None,
) -> Report:
    """Time `runs` runs of `steps` steps of each side. rows, hot_rows, batch: of each table.

    Raises BadInput without PyTorch.
    """
    settings: dict[str, object] = {"tables": tables, "rows": rows, "dim": dim, "hot_rows": hot_rows, "batch": batch}
    report = Report("prefetch", {**settings, "steps": steps, "runs": runs, "zipf": exponent})
    torch = import_torch(report)
    report.facts["compile_s"] = compile_seconds(dim)
    zipf = Zipf(rows, exponent, seed=3)
    hot_bytes = tables * hot_rows * (8 * dim + 64)
    budget = 4 * hot_bytes + (64 << 20) if tables == 1 else hot_bytes * 3 // 2 + (4 << 20)
    with (
        scratch(folder) as path,
        kvemb.open(path / "ahead", memory_budget=budget) as ahead,
        kvemb.open(path / "plain", memory_budget=budget) as plain,
    ):
        sides = [Side(_open(store, dim, hot_rows, tables)) for store in (ahead, plain)]
        for side, store in zip(sides, (ahead, plain), strict=True):
            for ids in batches_of_ids(rows, LOAD_BATCH):
                for variable in side.variables:
                    variable.upsert(ids, values_of(ids, dim))
            store.flush()
        until_idle()
        work = [
            [[torch.from_numpy(ids_of(zipf.sample(batch))) for _ in range(tables)] for _ in range(steps)]
            for _ in range(WARM_UP + runs)
        ]

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
        for pair in zip(*(side.variables for side in sides), strict=True):
            for one, other in zip(*map(_columns, pair), strict=True):
                np.testing.assert_array_equal(one, other)
        report.facts |= {"model_ms": 1e3 * model_s, "rows_compared": sum(each.size() for each in sides[0].variables)}
    with_it, without = ([1e3 * each for each in side[WARM_UP:]] for side in walls)
    report.lines = [compare_cost("step with prefetching", "ms", with_it, "without", without, MAX_RATIO)]
    return report


def _open(store: kvemb.Store, dim: int, hot_rows: int, tables: int) -> list[kvemb.Variable]:
    if tables == 1:
        return [open_table(store, dim, hot_rows)]
    return [open_table(store, dim, None, f"trained{number:03}") for number in range(tables)]


def _columns(variable: kvemb.Variable) -> list[Any]:
    """Return the keys, the rows, each slot and the scores."""
    exported: Any = variable.export(with_slots=True, with_scores=True)
    keys, rows, slots, scores = exported
    return [keys, rows, *slots.values(), scores]


class Side:
    """Tables, their modules and their optimizer. model_s: seconds of a step for the simulated model."""

    def __init__(self, variables: list[kvemb.Variable]) -> None:
        import torch

        import kvemb.torch as kt

        self.variables, self.model_s = variables, 0.0
        self._tables, self._ahead = [kt.Embedding(variable) for variable in variables], kt.prefetching
        self._optimizer = kt.Optimizer(torch.nn.ModuleList(self._tables))

    def train(self, batches: list[Any], *, ahead: bool) -> None:
        """Take a step on each batch: ids of each table."""
        sources: dict[Any, int] = {table: number for number, table in enumerate(self._tables)}
        for batch in self._ahead(batches, sources) if ahead else batches:
            found = [table(ids) for table, ids in zip(self._tables, batch, strict=True)]
            time.sleep(self.model_s)  # like a model on an accelerator, which leaves this process's cores free
            for rows in found:
                rows.backward(rows.detach())  # a gradient without further cost, which makes every difference visible
            self._optimizer.step()
