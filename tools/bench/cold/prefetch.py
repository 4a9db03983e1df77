"""`kvemb bench prefetch`: training steps on mostly cold tables, with kvemb.torch.prefetching and without.

Between its lookups and its updates, each step waits for a simulated model for as long as a step without a model takes,
so half of it is model time. Each side trains its own tables with the same batches, in turns, and the rows are compared
bit for bit. One table has `hot_rows` cells, and memory to spare; several grow in a budget of about as many for each, so
that reads ahead need memory that others have.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.hot.torch import import_torch
from kvemb.tools.bench.measure import scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, Dim, Exponent, Folder, HotRows, Rows, Runs, Steps, Tables
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load, open_table

MAX_RATIO = 0.75


def run(
    rows: Rows = 1_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 100_000,
    batch: Batch = 16_384,
    steps: Steps = 50,
    runs: Runs = 5,
    zipf: Exponent = 1.0,
    tables: Tables = 1,
    folder: Folder = None,
) -> Report:
    """Train mostly cold tables with kvemb.torch.prefetching, and without. A model takes half of each step.

    --rows and --batch are of each table. Several tables share a budget of about --hot-rows each.
    """
    torch, report = import_torch()
    popularity = Zipf(rows, zipf, seed=3)
    hot_bytes = tables * hot_rows * (8 * dim + 64)
    budget = 4 * hot_bytes + (64 << 20) if tables == 1 else hot_bytes * 3 // 2 + (4 << 20)

    def drawn() -> list[list[Any]]:
        return [[torch.from_numpy(ids_of(popularity.sample(batch))) for _ in range(tables)] for _ in range(steps)]

    with (
        scratch(folder) as path,
        kvemb.open(path / "ahead", memory_budget=budget) as ahead,
        kvemb.open(path / "plain", memory_budget=budget) as plain,
    ):
        sides = [Side(_open(store, dim, hot_rows, tables)) for store in (ahead, plain)]
        for side, store in zip(sides, (ahead, plain), strict=True):
            for variable in side.variables:
                load(variable, rows)
            store.flush()
        until_idle()
        work = [drawn(), drawn()]

        def step_ms(side: Side, run: int) -> float:
            start = time.perf_counter()
            side.train(work[run], ahead=side is sides[0])
            return 1e3 * (until_idle() - start) / steps  # including its work on RocksDB's threads

        turns = [partial(step_ms, side) for side in sides]
        model_ms = take_turns(turns, 2)[1][-1]  # warms up
        for side in sides:
            side.model_s = model_ms / 1e3
        work = [drawn() for _ in range(runs)]
        with_it, without = take_turns(turns, runs)
        for pair in zip(*(side.variables for side in sides), strict=True):
            for one, other in zip(*map(_columns, pair), strict=True):
                np.testing.assert_array_equal(one, other)
        report.facts |= {"model_ms": model_ms, "rows_compared": sum(each.size() for each in sides[0].variables)}
    report.lines = [compare("step with prefetching", "ms", with_it, "without", without).ratio_at_most(MAX_RATIO)]
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
