"""Tiering is invisible to every optimizer: with few hot rows a variable equals its model bit for bit, rows and slots.

The model is plain arrays (kvemb.tools.stress.model). Stores are closed and opened, restored, and left by a crash in
between. KVEMB_EXAMPLES says how many histories there are for each optimizer.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_optimizer import SHAPES

import kvemb
from kvemb.handle import inside
from kvemb.optimizers import KINDS, LAMB, Adagrad, Adam, Ftrl, Momentum, NAdam, Optimizer, RMSProp
from kvemb.tools.stress.lockstep import LockstepChecker
from kvemb.tools.stress.model import Model

EXAMPLES = int(os.environ.get("KVEMB_EXAMPLES", "1"))
KEYS, DIM, BUDGET = 1600, 5, "4MiB"
OPTIONS: list[Optimizer] = [
    *(Adagrad(0.1, clip_value=1.0, clip_norm=1.0, weight_decay=0.1), Momentum(0.1, weight_decay=0.1, decoupled=True)),
    *(RMSProp(0.1, momentum=0.5, centered=True), Ftrl(0.1, -0.3, l1_regularization_strength=0.1)),
    *(
        Adam(0.1, bias_correction="global"),
        NAdam(0.1, bias_correction="global", weight_decay=0.1),
        LAMB(weight_decay=1),
    ),
]
EVERY = [*(kind(learning_rate=0.1) for kind in KINDS.values()), *OPTIONS]


def opened(place: Path) -> kvemb.Store:
    return kvemb.open(place, memory_budget=BUDGET, durability="write")


def table_of(store: kvemb.Store, optimizer: Optimizer, dtype: str) -> kvemb.Variable:
    """A variable of which 1% of the rows are hot."""
    start = kvemb.RandomNormal(seed=5)
    return store.get_variable(
        "table", value_dtype=dtype, dim=DIM, hot_rows=KEYS // 100, optimizer=optimizer, initializer=start
    )


def change(twin: LockstepChecker, chance: Any) -> None:
    """One call of a kind drawn at random."""
    dtype, state = twin.model.dtype, twin.model.state_dtype
    keys = chance.integers(0, KEYS, int(chance.integers(1, 300)))
    values, others = (chance.normal(size=(len(keys), DIM)) for _ in range(2))
    kind = chance.integers(10)
    if kind < 6:
        twin.apply_gradients(keys, values.astype(state))
    elif kind == 6:
        twin.upsert(keys, values.astype(dtype))
    elif kind == 7:
        twin.accum(keys, others.astype(dtype), values.astype(dtype), chance.random(len(keys)) < 0.7)
    elif kind == 8:
        twin.lookup(keys, touch=False)  # uses alone are not in the log
    else:
        twin.remove(keys[:20])


def check(optimizer: Optimizer, dtype: str, seed: int, folder: Path) -> None:
    chance = np.random.default_rng(seed)
    store = opened(folder / "0")
    table = table_of(store, optimizer, dtype)
    model = Model(np.arange(KEYS), table.value_dtype, DIM, initializer=table.initializer, optimizer=optimizer)
    for turn in range(4):
        twin = LockstepChecker(table_of(store, optimizer, dtype), model)
        for _ in range(8):
            change(twin, chance)
        twin.check_export()
        assert inside(twin.variable).storage.optimizer_steps == model.optimizer_steps
        place = folder / str(turn + 1)
        if turn == 0:
            store.close()
            store = opened(store.path)
        elif turn == 1:
            store.checkpoint(folder / "checkpoint")
            store.close()
            store = kvemb.restore(folder / "checkpoint", place, memory_budget=BUDGET, durability="write")
        else:
            shutil.copytree(store.path, place)
            store.close()
            store = opened(place)
    LockstepChecker(table_of(store, optimizer, dtype), model).check_export()
    store.check(deep=True)
    store.close()


@pytest.mark.parametrize("optimizer", [Adam(0.1), Ftrl(0.1)], ids=repr)
def test_few_hot_rows_are_as_many(optimizer, tmp_path):
    check(optimizer, "float32", 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
@pytest.mark.parametrize("number", range(len(EVERY)), ids=lambda number: repr(EVERY[number]))
def test_few_hot_rows_are_as_many_for_every_optimizer(number, seed, tmp_path):
    """In the dtypes of test_formulas.py, whose kernels are compiled once for both."""
    dtype, _ = SHAPES[(number + seed) % len(SHAPES)]
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    check(EVERY[number], dtype, seed, tmp_path)


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
