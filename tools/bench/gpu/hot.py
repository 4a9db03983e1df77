"""The calls of a variable whose rows are all hot on a GPU, beside the same calls of one that is hot on the CPU.

Keys, rows and gradients are arrays in the host's memory on both sides, so what a GPU takes and gives crosses its link.
After each run both variables hold the same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import Work, compile_seconds, scratch, take_timed_turns
from kvemb.tools.bench.resident import LOAD_BATCH
from kvemb.tools.bench.results import Line, Report, compare

# A call on a variable with a batch of keys.
Call = Callable[[kvemb.Variable, Ids], object]
PEER = "the same on the CPU"
BAG = 16


def run(rows: int, dims: list[int], batch: int, batches: int, runs: int, device: str, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` calls of each kind for each dim. Raises BackendUnavailable without the device."""
    settings = {"rows": rows, "dims": dims, "batch": batch, "batches": batches, "runs": runs, "device": device}
    report = Report("gpu", settings)
    with scratch(folder) as path, kvemb.open(path / "store") as store:
        store.get_variable("probe", dim=1, devices=device, hot_rows=1)
    report.facts["compile_s"] = compile_seconds(dims[0])
    for dim in dims:
        report.lines += _lines(rows, dim, batch, batches, runs, device, folder)
    return report


def _lines(
    rows: int, dim: int, batch: int, batches: int, runs: int, device: str, folder: Path | None
) -> Iterator[Line]:
    budget = 3 * rows * (12 * dim + 64) + (256 << 20)
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget) as store:
        there, here = _loaded(store, device, rows, dim), _loaded(store, "cpu", rows, dim)
        draw = np.random.default_rng(dim)
        keys = [[ids_of(draw.integers(0, rows, batch)) for _ in range(batches)] for _ in range(runs)]
        values: Floats = draw.standard_normal((batch, dim), dtype=np.float32)
        for what, call in _calls(batch, values).items():
            sides = _calling(call, there, keys), _calling(call, here, keys)
            take_timed_turns(sides, 1)  # warm up
            taken = take_timed_turns(sides, runs)
            _assert_same(there, here, keys[0][0])
            rates, peer = ([batches * batch / each.wall for each in one] for one in taken)
            yield compare(f"{what}, dim {dim}", "rows/s", rates, PEER, peer)


def _loaded(store: kvemb.Store, device: str, rows: int, dim: int) -> kvemb.Variable:
    """Return a variable of Adam, all of whose rows are hot on a device."""
    name, optimizer = f"on {device.replace('/', '')}", kvemb.optimizers.Adam()
    var = store.get_variable(name, dim=dim, devices=device, init_size=2 * rows, optimizer=optimizer)
    for ids in batches_of_ids(rows, LOAD_BATCH):
        var.upsert(ids, values_of(ids, dim))
    return var


def _calling(call: Call, var: kvemb.Variable, keys: list[list[Ids]]) -> Work:
    """Return what makes one run of calls on a variable."""

    def work(i: int) -> None:
        for batch in keys[i]:
            call(var, batch)

    return work


def _calls(batch: int, values: Floats) -> dict[str, Call]:
    """The calls that are timed, by name; each takes a variable and a batch of keys."""
    offsets = np.arange(0, batch, BAG)
    return {
        "lookup": lambda var, keys: var.lookup(keys),
        "upsert": lambda var, keys: var.upsert(keys, values),
        "step of Adam": lambda var, keys: var.apply_gradients(keys, values),
        f"sums of bags of {BAG}": lambda var, keys: kvemb.embedding_lookup_sparse(var, keys, offsets, combiner="sum"),
    }


def _assert_same(there: kvemb.Variable, here: kvemb.Variable, keys: Ids) -> None:
    """Raise AssertionError unless both hold the same rows and slots, and all of them are hot."""
    mine, theirs = ((var.lookup(keys, touch=False), var.lookup_slot("v", keys)) for var in (there, here))
    if any(one.tobytes() != other.tobytes() for one, other in zip(mine, theirs, strict=True)):
        raise AssertionError("the rows on the GPU are not those on the CPU")
    if any(var.stats.rows_hot < var.stats.rows for var in (there, here)):
        raise AssertionError("some rows were not hot, so the measurement is not valid")
