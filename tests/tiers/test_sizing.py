"""Cells are paid for by the memory they are in: the host's by the store's budget, a device's by its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_table import DEVICE_BYTES, DeviceTable

import kvemb
from kvemb import registry
from kvemb.contracts import Memory
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.memory.budgets import Budgets
from kvemb.rows.schema import Schema, dtype_of
from kvemb.tiers.partition import default_partitioner
from kvemb.tiers.sizing import make_tables

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 8)
BUDGET = 16 << 20


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of a memory of their own."""
    monkeypatch.setitem(registry.hot_backends, "gpu", "device_table:DeviceTable")


def sized(budgets: Budgets, *devices: str, init_size: int = 0, hot_rows: int | None = None) -> Any:
    return make_tables("rows", SCHEMA, devices, default_partitioner, init_size, hot_rows, budgets, Limits())


def on_device(budgets: Budgets, device: str = "gpu:0") -> int:
    return budgets.of(Memory(device, DEVICE_BYTES)).free


def test_tables_of_one_variable_draw_on_the_budget_of_their_own_memory():
    budgets = Budgets(BUDGET)
    free = budgets.host.free
    made = sized(budgets, "cpu", "gpu:0", "gpu:1", "gpu:0", hot_rows=400)
    host, first, second, third = (table.nbytes for table in made.tables)
    assert budgets.host.free == free - host - budgets.staging.reserve_bytes(SCHEMA, Limits())
    assert on_device(budgets, "gpu:0") == DEVICE_BYTES - first - third
    assert on_device(budgets, "gpu:1") == DEVICE_BYTES - second


def test_a_table_may_grow_as_far_as_its_own_memory_allows():
    budgets = Budgets(BUDGET)
    cpu, gpu = sized(budgets, "cpu", "gpu:0").tables
    assert gpu.max_capacity_rows * DeviceTable.bytes_per_cell(SCHEMA) <= DEVICE_BYTES
    assert cpu.max_capacity_rows > 4 * gpu.max_capacity_rows


@pytest.mark.parametrize("asked", [{"hot_rows": 100_000}, {"init_size": 100_000}])
def test_what_a_device_cannot_hold_is_refused_with_its_name_and_takes_nothing(asked):
    budgets = Budgets(BUDGET)
    free = budgets.host.free
    with pytest.raises(ValueError, match=rf"{next(iter(asked))} of variable 'rows' needs .* of gpu:0's budget"):
        sized(budgets, "cpu", "gpu:0", **asked)
    assert (budgets.host.free, on_device(budgets)) == (free, DEVICE_BYTES)


def test_a_table_that_cannot_be_made_gives_back_what_all_took(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no memory on the device")

    budgets = Budgets(BUDGET)
    free = budgets.host.free
    monkeypatch.setattr(DeviceTable, "__init__", refuse)
    with pytest.raises(MemoryError):
        sized(budgets, "cpu", "gpu:0")
    assert (budgets.host.free, on_device(budgets)) == (free, DEVICE_BYTES)


def test_variables_fit_where_those_opened_before_have_more_than_they_need(open_store, tmp_path):
    """They kept their first cells for good: a store could not be opened with all variables that had been open in it."""
    store, keys = open_store(tmp_path / "store", memory_budget="4MiB"), np.arange(100)
    sizes = [*[{"dim": 16, "init_size": 8192}] * 3, *[{"dim": 256}] * 7]
    for number, size in enumerate(sizes):
        made = store.get_variable(f"table{number}", kv_creator=kvemb.MemoryCreator(), **size)
        made.upsert(keys, np.full((100, made.dim), 1.5, np.float32))
    assert all((store.variables[f"table{number}"].lookup(keys) == 1.5).all() for number in range(len(sizes)))


def test_a_variable_on_a_device_grows_there_and_gives_all_of_it_back(store):
    free = store.budget.free
    variable = store.get_variable("rows", dim=8, devices="gpu:0", init_size=16)
    before, host = on_device(inside(store).budgets), store.budget.free
    variable.upsert(np.arange(500), np.zeros((500, 8), np.float32))
    (table,) = variable.tables
    assert table.capacity_rows > 16
    assert on_device(inside(store).budgets) == DEVICE_BYTES - table.nbytes < before
    assert store.budget.free == host
    store.drop_variable("rows")
    assert (store.budget.free, on_device(inside(store).budgets)) == (free, DEVICE_BYTES)
