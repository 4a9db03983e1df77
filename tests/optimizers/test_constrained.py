"""Optimizers of variables: beside a constraint, and with a rate that changes from step to step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.optimizers import Adam, Ftrl, Momentum, Optimizer

KEYS, DIM, BUDGET = 1600, 5, "4MiB"


def table_of(store: kvemb.Store, optimizer: Optimizer, dtype: str) -> kvemb.Variable:
    """A variable of which 1% of the rows are hot."""
    start = kvemb.RandomNormal(seed=5)
    return store.get_variable(
        "table", value_dtype=dtype, dim=DIM, hot_rows=KEYS // 100, optimizer=optimizer, initializer=start
    )


@pytest.mark.parametrize("optimizer", [Ftrl(0.1), Adam(0.1, bias_correction="global")], ids=repr)
def test_constrained_rows_go_on_from_where_they_were_put(optimizer, tmp_path):
    """Ftrl writes rows from its slots: the next step must not bring back what the constraint took away."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable(
            "table", dim=3, hot_rows=16, optimizer=optimizer, constraint=lambda rows: np.minimum(rows, 0.125)
        )
        for _ in range(3):
            table.apply_gradients(np.arange(50), np.full((50, 3), -9, np.float32))
        assert table.lookup(np.arange(50)).tolist() == [[0.125] * 3] * 50
        if isinstance(optimizer, Ftrl):
            table.apply_gradients(np.arange(50), np.zeros((50, 3), np.float32))
            np.testing.assert_allclose(table.lookup(np.arange(50)), 0.125, rtol=1e-6)
        else:
            assert inside(table).storage.optimizer_steps == 3


def test_a_step_whose_constraint_fails_is_not_counted(tmp_path):
    def fails(rows: Any) -> Any:
        raise RuntimeError("no")

    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = store.get_variable("table", dim=3, optimizer=Adam(0.1, bias_correction="global"), constraint=fails)
        with pytest.raises(RuntimeError, match="no"):
            table.apply_gradients([1], np.ones((1, 3), np.float32))
        assert inside(table).storage.optimizer_steps == 0


def test_a_constraint_that_fails_undoes_its_part_of_the_step_alone(tmp_path):
    given: list[int] = []

    def fails_the_second_time(rows: Any) -> Any:
        given.append(len(rows))
        if len(given) == 2:
            raise RuntimeError("no")
        return rows

    limits, keys = Limits(call_rows=40), np.arange(100)
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET, limits=limits) as store:
        optimizer = kvemb.optimizers.SGD(1.0)
        table = store.get_variable("table", dim=1, hot_rows=16, optimizer=optimizer, constraint=fails_the_second_time)
        table.upsert(keys, np.zeros((100, 1), np.float32))
        with pytest.raises(RuntimeError, match="no"):
            table.apply_gradients(keys, np.ones((100, 1), np.float32))
        assert given == [40, 40]
        assert sorted(table.lookup(keys)[:, 0].tolist()) == [-1.0] * 40 + [0.0] * 60
        table.apply_gradients(keys[:1], np.ones((1, 1), np.float32))  # the store is not poisoned
        store.check()


@pytest.mark.parametrize("optimizer", [Adam(0.5), Momentum(0.5)], ids=repr)
def test_a_schedule_takes_effect_at_the_step_it_is_set_for(optimizer, tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = table_of(store, optimizer, "float64")
        rows = table.lookup(np.arange(30))
        slots = {shape.name: np.zeros((30, shape.width)) for shape in optimizer.shapes(DIM)}
        for step, rate in enumerate([0.5, 0.25, 0.0, 1.0]):
            table.optimizer = replace(optimizer, learning_rate=rate)
            grads = np.random.default_rng(step).normal(size=(30, DIM))
            table.apply_gradients(np.arange(30), grads)
            rows = replace(optimizer, learning_rate=rate).step(rows, slots, grads)
            np.testing.assert_array_equal(table.lookup(np.arange(30)), rows)
