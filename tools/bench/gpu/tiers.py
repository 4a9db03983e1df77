"""Training a table of 10 times a GPU's memory, and twice the host's: three tiers compared with two, without the GPU.

The GPU's memory is limited by device_memory. Both stores have the same budget of the host's memory and take the same
steps, with ids by a Zipf law; after each run the rows of a batch have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.gpu.hot import rows_there, unsaved
from kvemb.tools.bench.measure import Work, measure_alternately, scratch
from kvemb.tools.bench.results import Comparison, compare

MIN_RATIO, EXPONENT = 3.0, 1.05
LOAD_ROWS = 65_536


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
        sides = _on_gpu(there, keys, grads), _on_cpu(here, keys, grads)
        measure_alternately(sides, 1)  # warm up: fills the hot tiers with the rows that are used most
        taken = measure_alternately(tuple(_after(side) for side in sides), runs)
        last = keys[-1][-1]
        if there.lookup(last, touch=False).tobytes() != here.lookup(last, touch=False).tobytes():
            raise AssertionError("the rows on the GPU are not those on the CPU")
    rates, others = ([steps * batch / each.wall for each in side] for side in taken)
    what = f"training, table of 10 times {device_mib} MiB of the GPU, 2 times the host's budget, Zipf {EXPONENT}"
    yield compare(what, "ids/s", rates, "the same, hot on the CPU alone", others, MIN_RATIO)


def _loaded(store: kvemb.Store, device: str, rows: int, dim: int) -> kvemb.Variable:
    var = store.get_variable("rows", dim=dim, devices=device, optimizer=kvemb.optimizers.Adam())
    for ids in batches_of_ids(rows, LOAD_ROWS):
        var.upsert(ids, values_of(ids, dim))
    store.flush()
    return var


def _on_gpu(var: kvemb.Variable, keys: list[list[Ids]], grads: Floats) -> Work:
    """Return steps with ids and gradients on the GPU, where the rows are returned."""
    there = rows_there(var)
    given, gradients = [[there.array(batch) for batch in each] for each in keys], there.array(grads)

    def work(run: int) -> None:
        for ids in given[run]:
            var.lookup(ids)
            var.apply_gradients(ids, gradients)
        var.lookup(keys[run][-1][:1], touch=False)  # waits for the GPU, and until other threads have moved rows

    return work


def _on_cpu(var: kvemb.Variable, keys: list[list[Ids]], grads: Floats) -> Work:
    def work(run: int) -> None:
        for ids in keys[run]:
            var.lookup(ids)
            var.apply_gradients(ids, grads)

    return work


def _after(side: Work) -> Work:
    """Return the work, with runs numbered from 1."""
    return lambda run: side(run + 1)
