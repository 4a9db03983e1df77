"""A GPU that has no memory left, at any moment of any call: a clear error or a slower call, and never a lost row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_on_device import there
from cuda_devices import device_of
from cuda_on_cpu import CudaOnCpuTable
from every_optimizer import EVERY, QUICK
from quick import quick
from short_device import ShortDevice

import kvemb
from kvemb import registry
from kvemb.contracts import PlannedChange
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.optimizers import LAMB, Adagrad
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Unique
from kvemb.rows.schema import Schema, dtype_of
from tests.histories import small_spill

DIM, FIRST, MORE = 5, 300, 700


@pytest.fixture(params=["SmallCudaTable", "CudaOnCpuTable"], ids=["evicting", "growing"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ShortDevice:
    """Every GPU there is. Tables have one bucket, or grow."""
    device_of("cpu")
    made = ShortDevice()
    monkeypatch.setitem(registry.hot_backends, "gpu", f"cuda_on_cpu:{request.param}")
    monkeypatch.setattr(CudaOnCpuTable, "open_device", staticmethod(lambda name: made))
    return made


def half(values: Any) -> Any:
    return np.asarray(values) * 0.5


def at_host(array: Any) -> Any:
    return array


KEYS = np.random.default_rng(0).permutation(MORE)
TWICE = np.concatenate([KEYS, KEYS[:400]])
GRADS = np.random.default_rng(1).normal(size=(len(TWICE), DIM)).astype(np.float32)
ZEROS = np.zeros((MORE, DIM), np.float32)
# given: brings an array to the GPU, or leaves it.
CHANGES: dict[str, Callable[[kvemb.Variable, Callable[[Any], Any]], Any]] = {
    "upsert": lambda var, given: var.upsert(given(TWICE), given(GRADS)),
    "accum": lambda var, given: var.accum(given(KEYS), given(ZEROS), given(GRADS[:MORE]), given(KEYS < FIRST)),
    "step": lambda var, given: var.apply_gradients(given(TWICE), given(GRADS)),
    "lookup": lambda var, given: var.lookup(given(TWICE)),
    "remove": lambda var, given: var.remove(KEYS[:500]),
    "prefetch": lambda var, given: (var.prefetch(given(KEYS)), var.lookup(given(KEYS))),
    "restrict": lambda var, given: var.restrict(100),
}


def rows_of(var: kvemb.Variable) -> dict[int, bytes]:
    """The bytes of each row, with its slots."""
    keys, values, slots = var.export(with_slots=True)
    columns = [values, *(slots[name] for name in sorted(slots))]
    return {key: b"".join(column[at].tobytes() for column in columns) for at, key in enumerate(keys.tolist())}


def opened(path: Path, devices: Any, how: dict[str, Any]) -> tuple[kvemb.Store, list[kvemb.Variable]]:
    """A store with a variable in the host's memory and one on GPUs, of the same rows."""
    store = kvemb.open(path, memory_budget="6MiB", limits=Limits(**small_spill(64)))
    how = {
        "initializer": kvemb.RandomNormal(0.0, 1.0, seed=3),
        "optimizer": Adagrad(0.1),
        "restrict_policy": kvemb.FrequencyRestrictPolicy,
        **how,
    }
    both = [store.get_variable(name, dim=DIM, devices=on, **how) for name, on in (("plain", None), ("rows", devices))]
    for var in both:
        var.upsert(np.arange(FIRST), np.ones((FIRST, DIM), np.float32))
        var.apply_gradients(np.arange(100), np.ones((100, DIM), np.float32))
    return store, both


def change_when_short(
    device: ShortDevice, path: Path, name: str, given: Any, short: Any, devices: Any, how: dict[str, Any]
) -> bool:
    """Make a change while the device is short of memory. short: makes it so. Returns whether it refused some."""
    store, (plain, var) = opened(path, devices, how)
    with store:
        before = rows_of(plain)
        CHANGES[name](plain, at_host)
        after = rows_of(plain)
        short(device)
        said = None
        try:
            CHANGES[name](var, given)
        except MemoryError as error:
            said = str(error)
        assert said is None or "gpu:0 has no" in said
        refused = device.refused
        found = rows_of(var)
        store.flush()
        device.suffice()
        assert inside(store).state.cause is None
        assert found == rows_of(var)
        assert var.size() == len(found)
        assert found == (before if said else after)
        CHANGES[name](var, given)
        store.check()
    return refused > 0


FAIL = [partial(ShortDevice.fail, call=call) for call in range(60)]
GIVE = [partial(ShortDevice.give, nbytes=nbytes) for nbytes in (0, *(1 << bit for bit in range(8, 24)))]


def change_until_there_is_enough(
    device: ShortDevice, path: Path, name: str, given: Any, shortages: Any, devices: Any = "gpu:0", **how: Any
) -> None:
    """Make a change, each time a little less short of memory."""
    for number, short in enumerate(shortages):
        if not change_when_short(device, path / str(number), name, given, short, devices, how):
            break
    else:
        pytest.fail("it was short of memory each time")
    assert number > 0 or name == "restrict", "it needs none where rows have room"


@pytest.mark.parametrize(("name", "given"), [("step", there), pytest.param("upsert", at_host, marks=pytest.mark.slow)])
def test_a_full_gpu_loses_no_row(device: ShortDevice, tmp_path: Path, name: str, given: Any) -> None:
    change_until_there_is_enough(device, tmp_path, name, given, GIVE[::8])


# Each shortage in each kind of table, and with arrays of each place.
EVICTING, GROWING = "SmallCudaTable", "CudaOnCpuTable"
PAIRS = [(EVICTING, FAIL[::8], there), (EVICTING, GIVE[::5], at_host)]
PAIRS += [(GROWING, GIVE[::5], there), (GROWING, FAIL[::8], at_host)]


@pytest.mark.slow
@pytest.mark.parametrize(("device", "shortages", "given"), PAIRS, indirect=["device"])
@pytest.mark.parametrize("name", CHANGES)
def test_no_row_is_lost_or_wrong_whatever_finds_no_memory(
    device: ShortDevice, tmp_path: Path, name: str, given: Any, shortages: Any
) -> None:
    change_until_there_is_enough(device, tmp_path, name, given, shortages)


@pytest.mark.slow
@pytest.mark.parametrize(("device", "shortages"), [(EVICTING, FAIL[::8]), (GROWING, GIVE[::5])], indirect=["device"])
@pytest.mark.parametrize("name", ["upsert", "step", "remove"])
def test_neither_a_constraint_nor_a_second_gpu_finds_no_memory_half_way(
    device: ShortDevice, tmp_path: Path, name: str, shortages: Any
) -> None:
    how = {"optimizer": LAMB(0.1), "constraint": half}
    change_until_there_is_enough(device, tmp_path, name, at_host, shortages, ["gpu:0", "gpu:1"], **how)


COUNT, TIMES = 300, 4


def changes_of(table: Any, optimizer: Any) -> dict[str, Callable[[], Any]]:
    """Every change of many cells at once of a table, after its preparation, by arrays of the host and of the GPU."""
    cells, more = np.arange(COUNT) % 100, np.ones((COUNT, DIM), np.float32)
    grads = np.ones((TIMES * COUNT, DIM), np.float32)
    sums = Unique(np.tile(np.arange(COUNT), TIMES)).sums
    values, keys, given = (table.device_rows.given(there(array)) for array in (more, np.arange(COUNT), grads[:COUNT]))

    def on_gpu(change: Callable[[], None], *prepared: Any) -> None:
        with table.device_rows.on(keys):
            table.device_rows.find(keys)
            table.device_rows.prepare(*prepared)
            short(table)
            change()

    def at_cells(change: Callable[[], None], **given: Any) -> None:
        table.prepare(COUNT, PlannedChange(**given))
        short(table)
        change()

    distinct = np.where(cells == np.arange(COUNT), cells, -1)
    rows = RowBlock(table.schema, COUNT)
    step = {"optimizer": optimizer, "grads": grads, "sums": sums}
    matching = {
        "match": lambda: at_cells(lambda: table.match(distinct, optimizer, 1), matching=optimizer),
        "match there": lambda: on_gpu(lambda: table.device_rows.match(optimizer, 1), None, optimizer),
    }
    return {
        "assign": lambda: at_cells(lambda: table.assign(cells, more, 1), embeddings=1),
        "add": lambda: at_cells(lambda: table.add(cells, more, more, 1), embeddings=2),
        "upsert": lambda: at_cells(lambda: table.upsert(np.arange(COUNT), more, 1), embeddings=1),
        "remove": lambda: at_cells(lambda: table.remove(table.find(np.arange(50, 50 + COUNT)))),
        "put": lambda: at_cells(lambda: table.put(cells[:100], rows.part(0, 100)), rows=True),
        "apply": lambda: at_cells(lambda: table.apply(distinct, optimizer, grads, 1, sums, 1), **step),
        "assign there": lambda: on_gpu(lambda: table.device_rows.assign(values, 1)),
        "add there": lambda: on_gpu(lambda: table.device_rows.add(values, values, 1)),
        "apply there": lambda: on_gpu(lambda: table.device_rows.apply(optimizer, given, 1, 1), optimizer),
        **({} if optimizer.match is None else matching),
    }


def short(table: Any) -> None:
    table.cells.queue.device.give(0)


@pytest.mark.parametrize("device", ["CudaOnCpuTable"], indirect=True, ids=["one"])
@pytest.mark.parametrize("optimizer", quick([*QUICK, *EVERY], len(QUICK)), ids=repr)
def test_a_change_that_is_prepared_asks_for_no_memory(device: ShortDevice, optimizer: Any) -> None:
    schema = Schema(dtype_of("int64"), dtype_of("float32"), DIM, optimizer.shapes(DIM))
    for name in changes_of(CudaOnCpuTable(schema, 128, 128), optimizer):
        device.suffice()
        table = CudaOnCpuTable(schema, 128, 128)
        rows = RowBlock(schema, 100)
        rows.keys[:] = np.arange(100)
        table.insert(rows)
        changes_of(table, optimizer)[name]()
        assert device.refused == 0, name
