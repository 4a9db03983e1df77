"""The calls of a variable whose rows are all hot on a GPU, compared with one whose rows are hot on the CPU.

Keys, rows and gradients are in the GPU's memory, or in the host's, from which they are transferred. After each run both
variables have the same rows, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, Ids, ids_of
from kvemb.tools.bench.measure import Work, measure_alternately, scratch
from kvemb.tools.bench.results import Comparison, compare
from kvemb.tools.bench.trained import load

# A call on a variable with a batch of keys and their rows or gradients, in either memory.
Call = Callable[[kvemb.Variable, Any, Any], object]
PEER = "the same on the CPU"
BAG = 16


def measure(
    rows: int, dim: int, batch: int, batches: int, runs: int, device: str, folder: Path | None
) -> Iterator[Comparison]:
    """Yield the lines of `runs` runs of `batches` calls of each kind. Raises BackendUnavailable without the device."""
    budget = 4 * rows * (12 * dim + 64) + (256 << 20)
    with scratch(folder) as path, unsaved(path / "store", memory_budget=budget) as store:
        there, across = (_loaded(store, name, device, rows, dim) for name in ("there", "across"))
        here = _loaded(store, "here", "cpu", rows, dim)
        on_gpu, draw = rows_there(there), np.random.default_rng(dim)
        keys = [[ids_of(draw.integers(0, rows, batch)) for _ in range(batches)] for _ in range(runs)]
        values: Floats = draw.standard_normal((batch, dim), dtype=np.float32)
        keys_there, values_there = [[on_gpu.array(each) for each in run] for run in keys], on_gpu.array(values)
        for what, call in _calls(batch).items():
            sides = (
                _calling(call, there, keys_there, values_there, on_gpu.finish),
                _calling(call, here, keys, values),
                _calling(call, across, keys, values),
            )
            measure_alternately(sides, 1)  # warm up
            taken = measure_alternately(sides, runs)
            _assert_same([there, here, across], keys[0][0])
            fast, peer, slow = ([batches * batch / each.wall for each in one] for one in taken)
            yield compare(f"{what}, dim {dim}, arrays on the GPU", "rows/s", fast, PEER, peer)
            yield compare(f"{what}, dim {dim}, arrays on the host", "rows/s", slow, PEER, peer)


def rows_there(var: kvemb.Variable) -> Any:
    """Return the device rows of a variable on a GPU, which place arrays there."""
    if (device_rows := var.tables[0].device_rows) is None:
        raise AssertionError(f"the rows of {var.devices} are not in a GPU's memory")
    return device_rows


@contextmanager
def unsaved(path: Path, **options: Any) -> Iterator[kvemb.Store]:
    """Open a store that is closed without a flush, because it is deleted afterwards."""
    store = kvemb.open(path, **options)
    try:
        yield store
    finally:
        store.close(flush=False)


def _loaded(store: kvemb.Store, name: str, device: str, rows: int, dim: int) -> kvemb.Variable:
    """Return a variable with Adam, all of whose rows are hot on a device."""
    optimizer = kvemb.optimizers.Adam()
    var = store.get_variable(name, dim=dim, devices=device, init_size=2 * rows, optimizer=optimizer)
    load(var, rows)
    return var


def _calling(
    call: Call, var: kvemb.Variable, keys: list[list[Any]], values: Any, finish: Callable[[], None] | None = None
) -> Work:
    """Return a function that makes one run of calls on a variable. finish: waits until the GPU has done them."""

    def work(i: int) -> None:
        for batch in keys[i]:
            call(var, batch, values)
        if finish is not None:
            finish()

    return work


def _calls(batch: int) -> dict[str, Call]:
    """Return the timed calls, by name."""
    offsets = np.arange(0, batch, BAG)
    return {
        "lookup": lambda var, keys, values: var.lookup(keys),
        "upsert": lambda var, keys, values: var.upsert(keys, values),
        "step of Adam": lambda var, keys, values: var.apply_gradients(keys, values),
        f"sums of bags of {BAG}": lambda var, keys, values: kvemb.embedding_lookup_sparse(
            var, keys, offsets, combiner="sum"
        ),
    }


def _assert_same(variables: list[kvemb.Variable], keys: Ids) -> None:
    """Raise AssertionError unless all have the same rows and slots, all of them hot."""
    rows = {var.lookup(keys, touch=False).tobytes() + var.lookup_slot("v", keys).tobytes() for var in variables}
    if len(rows) > 1:
        raise AssertionError("the rows on the GPU are not those on the CPU")
    if any(var.stats.rows_hot < var.stats.rows for var in variables):
        raise AssertionError("some rows were not hot, so the measurement is not valid")
