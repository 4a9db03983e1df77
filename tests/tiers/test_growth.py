"""A hot tier without a fixed size: it grows under pressure, in small steps, until the budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb

Opener = Callable[..., kvemb.Store]
KEYS = np.arange(-3000, 3000) * 1_000_003


def drive(twin: LockstepChecker, seed: int, calls: int) -> None:
    """Make random calls; many keys are new to the table at first."""
    chance = np.random.default_rng(seed)
    for _ in range(calls):
        keys = chance.choice(KEYS, int(chance.integers(400)))
        values = chance.standard_normal((len(keys), twin.model.dim)).astype(np.float32)
        act = chance.integers(6)
        if act <= 1:
            twin.upsert(keys, values)
        elif act == 2:
            twin.apply_gradients(keys, values)
        elif act == 3:
            twin.remove(keys[:50])
        else:
            twin.variable.prefetch(keys)
            twin.lookup(keys, touch=act == 4)
        twin.check_size()


def table(store: kvemb.Store, dim: int, **arguments: Any) -> LockstepChecker:
    optimizer, start = kvemb.optimizers.Adagrad(0.5), kvemb.RandomUniform(seed=1)
    variable = store.get_variable("table", dim=dim, initializer=start, optimizer=optimizer, **arguments)
    return LockstepChecker(variable, Model(KEYS, variable.value_dtype, dim, initializer=start, optimizer=optimizer))


@pytest.mark.slow
def test_a_table_of_wide_rows_stops_growing_at_its_budget_and_still_equals_its_model(
    open_store: Opener, tmp_path: Path
) -> None:
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    twin = table(store, 300)
    for seed in range(8):
        drive(twin, seed, 8)
    stats = twin.variable.stats
    assert stats.bytes_hot < 4 << 20
    assert 0 < stats.rows_hot < twin.variable.size() / 2
    assert stats.cold_writes > 1000
    twin.check_export()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "init_size", "devices"),
    [(3, 10_000, ["cpu"] * 3), (100, 0, ["cpu"])],
)
def test_a_growing_table_ends_with_all_that_is_not_staging(
    open_store: Opener, tmp_path: Path, dim: int, init_size: int, devices: list[str]
) -> None:
    store = open_store(tmp_path / "store", memory_budget=12_345_678)
    variable = store.get_variable("table", dim=dim, devices=devices, init_size=init_size)
    # More rows than cells of 4 * dim + 26 bytes fit the budget.
    for start in range(0, store.budget.total // (4 * dim + 26), 20_000):
        keys = np.arange(start, start + 20_000)
        variable.upsert(keys, np.ones((len(keys), dim), np.float32))
    assert 0 <= store.budget.free < store.budget.total // 50
    assert variable.stats.bytes_hot > 0.6 * store.budget.total


def test_a_second_variable_finds_memory_after_the_first_has_grown(store: kvemb.Store) -> None:
    first = table(store, 128)
    drive(first, 1, 60)
    second = store.get_variable("second", dim=128)
    rows = np.ones((3000, 128), np.float32)
    second.upsert(np.arange(3000), rows)
    np.testing.assert_array_equal(second.lookup(np.arange(3000)), rows)
    first.check_export()
