"""Training a table of 10 times a GPU's memory, and twice the host's: three tiers compared with two, without the GPU.

The GPU's memory is limited by device_memory. Both stores have the same budget of the host's memory and take the same
steps, with ids by a Zipf law; after each run the rows of a batch have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Zipf, ids_of
from kvemb.tools.bench.gpu.hot import rows_there, unsaved
from kvemb.tools.bench.measure import measure_alternately, scratch
from kvemb.tools.bench.results import Comparison, compare
from kvemb.tools.bench.trained import load

MIN_RATIO, EXPONENT = 3.0, 1.05


def measure(
    device: str, device_mib: int, dim: int, batch: int, steps: int, runs: int, folder: Path | None
) -> Iterator[Comparison]:
    """Yield the line. device_mib: of the GPU's memory, for its hot rows; the table has ten times as many bytes."""
    row_bytes = 3 * 4 * dim + 8  # with Adam's slots, and the row's count of steps
    rows, budget = 10 * (device_mib << 20) // row_bytes, f"{max(16, 5 * device_mib)}MiB"
    with (
        scratch(folder) as path,
        unsaved(path / "gpu", memory_budget=budget, device_memory=device_mib << 20) as upper,
        unsaved(path / "cpu", memory_budget=budget) as lower,
    ):
        there, here = _loaded(upper, device, rows, dim), _loaded(lower, "cpu", rows, dim)
        zipf, draw = Zipf(rows, EXPONENT, seed=1), np.random.default_rng(2)
        keys = [[ids_of(zipf.sample(batch)) for _ in range(steps)] for _ in range(runs + 1)]
        grads: Floats = draw.standard_normal((batch, dim), dtype=np.float32)
        on_gpu = rows_there(there)
        keys_there, grads_there = [[on_gpu.array(batch) for batch in each] for each in keys], on_gpu.array(grads)

        def upper_tiers(run: int) -> None:
            _steps(there, keys_there[run], grads_there)
            # Waits for the GPU, and until other threads have moved rows.
            there.lookup(keys[run][-1][:1], touch=False)

        def lower_tiers(run: int) -> None:
            _steps(here, keys[run], grads)

        # The last run comes first, to warm up: it fills the hot tiers with the rows that are used most.
        for side in (upper_tiers, lower_tiers):
            side(runs)
        taken = measure_alternately((upper_tiers, lower_tiers), runs)
        last = keys[runs - 1][-1]
        if there.lookup(last, touch=False).tobytes() != here.lookup(last, touch=False).tobytes():
            raise AssertionError("the rows on the GPU are not those on the CPU")
    rates, others = ([steps * batch / each.wall for each in side] for side in taken)
    what = f"training, table of 10 times {device_mib} MiB of the GPU, 2 times the host's budget, Zipf {EXPONENT}"
    yield compare(what, "ids/s", rates, "the same, hot on the CPU alone", others).ratio_at_least(MIN_RATIO)


def _loaded(store: kvemb.Store, device: str, rows: int, dim: int) -> kvemb.Variable:
    var = store.get_variable("rows", dim=dim, devices=device, optimizer=kvemb.optimizers.Adam())
    load(var, rows)
    store.flush()
    return var


def _steps(var: kvemb.Variable, keys: list[Any], grads: Any) -> None:
    """Take steps with ids and gradients where the rows are returned."""
    for ids in keys:
        var.lookup(ids)
        var.apply_gradients(ids, grads)
