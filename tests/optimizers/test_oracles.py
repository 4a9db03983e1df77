"""Every optimizer against its source, through the tiers: duplicates, sparse touches, rows that leave for disk.

KVEMB_EXAMPLES says how many histories are drawn for each optimizer; each has up to 100 steps of some rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracles import started, stepped
from quick import quick

import kvemb
from kvemb.optimizers import KINDS, Optimizer

EXAMPLES = int(os.environ.get("KVEMB_EXAMPLES", "1"))
KEYS, DIM = 40, 6
RANGES = {
    "learning_rate": (0.001, 0.5),
    "learning_rate_power": (-0.9, 0.0),
    "initial_accumulator_value": (0.05, 1.0),
    "epsilon": (1e-8, 1e-2),
    "momentum": (0.0, 0.95),
    "beta_1": (0.0, 0.95),
    "beta_2": (0.5, 0.999),
    "rho": (0.5, 0.99),
    "momentum_decay": (0.0, 1.0),
    "weight_decay": (0.0, 0.3),
    "l1_regularization_strength": (0.0, 0.1),
    "l2_regularization_strength": (0.0, 0.1),
    "clip_value": (0.2, 2.0),
    "clip_norm": (0.2, 3.0),
}


def drawn(data: Any, kind: type[Optimizer], **fixed: Any) -> Any:
    """An optimizer with numbers drawn at random, or left at their defaults."""
    given: dict[str, Any] = dict(fixed)
    for field in fields(kind):
        if field.name in fixed or data.draw(st.booleans(), label=f"{field.name} is the default"):
            continue
        if field.name in RANGES:
            given[field.name] = data.draw(st.floats(*RANGES[field.name], allow_subnormal=False), label=field.name)
        elif isinstance(field.default, bool):
            given[field.name] = data.draw(st.booleans(), label=field.name)
    return kind(**given)


class Reference:
    """Rows of all keys in float64, each with the number of its steps, or all with one."""

    def __init__(self, optimizer: Any, first: Any) -> None:
        self.optimizer, self.rows = optimizer, first.astype(np.float64)
        self.state, self.steps = started(optimizer, first.shape), np.zeros(len(first), int)
        self.calls = 0

    def apply(self, keys: Any, grads: Any) -> None:
        """Sum the gradients of each key, and take its step."""
        self.calls += 1
        total = np.zeros_like(self.rows)
        np.add.at(total, keys, grads.astype(np.float64))
        touched = np.unique(keys)
        self.steps[touched] += 1
        by_row = getattr(self.optimizer, "bias_correction", "row") == "row"
        for t in np.unique(self.steps[touched]) if by_row else [self.calls]:
            rows = touched[self.steps[touched] == t] if by_row else touched
            state = {name: part[rows] for name, part in self.state.items()}
            self.rows[rows] = stepped(self.optimizer, self.rows[rows], total[rows], state, int(t))
            for name, part in state.items():
                self.state[name][rows] = part


def check(kind: type[Optimizer], data: Any, folder: Path, steps: int, **fixed: Any) -> None:
    """Train rows of which a few are hot, in a store and in the reference, and compare rows and slots."""
    optimizer = drawn(data, kind, **fixed)
    seed = data.draw(st.integers(0, 1000), label="seed")
    assume(seed > 0)  # Hypothesis's first case has every option off; it must not be the only one
    chance = np.random.default_rng(seed)
    first = chance.normal(size=(KEYS, DIM))
    first[0] = 0
    reference = Reference(optimizer, first)
    with kvemb.open(folder, memory_budget="4MiB") as store:
        table = store.get_variable("table", value_dtype="float64", dim=DIM, hot_rows=16, optimizer=optimizer)
        table.upsert(np.arange(KEYS), first)
        for _ in range(steps):
            keys = chance.choice(KEYS, int(chance.integers(1, 2 * KEYS)))
            grads = chance.normal(size=(len(keys), DIM))
            table.apply_gradients(keys, grads)
            reference.apply(keys, grads)
        found, slots = table.lookup(np.arange(KEYS)), table.export(with_slots=True)[2]
        store.check()
        assert table.stats.cold_writes > 0
    near(found, reference.rows, 1e-12)
    for name, part in reference.state.items():
        near(slots[name][reference.steps > 0], part[reference.steps > 0], 1e-11)
    if "steps" in slots:
        assert slots["steps"][:, 0].tolist() == reference.steps.tolist()


def near(found: Any, expected: Any, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, np.abs(expected).max()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Names of new folders."""
    place = tmp_path_factory.mktemp("oracles")
    return (place / str(number) for number in range(1 << 30))


def run_drawn(run: Callable[[Any], None], examples: int = 1) -> None:
    """Run a check of numbers that it draws from Hypothesis."""
    how = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    how(given(st.data())(run))()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_are_those_of_the_source(kind, folders):
    run_drawn(lambda data: check(kind, data, next(folders), 100), EXAMPLES)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_rows_of_float32_are_near_those_of_the_source(kind):
    """By the formula in NumPy, whose bits kernels have (test_formulas.py).

    Where a step turns on a sign or a threshold, a rounding may change it: those are left to float64.
    """

    def run(data: Any) -> None:
        optimizer = drawn(data, kind)
        seed = data.draw(st.integers(0, 1000), label="seed")
        assume(seed > 0)
        chance = np.random.default_rng(seed)
        rows = chance.normal(size=(KEYS, DIM)).astype(np.float32)
        slots = {
            slot.name: np.full((KEYS, shape.width), slot.initial, np.float32)
            for slot, shape in zip(optimizer.slots, optimizer.shapes(DIM), strict=True)
        }
        optimizer.match_slots(rows, slots)
        reference = Reference(optimizer, rows)
        for step in range(100):
            keys = chance.choice(KEYS, int(chance.integers(1, KEYS)), replace=False)
            grads = chance.normal(size=(len(keys), DIM)).astype(np.float32)
            some = {name: slot[keys] for name, slot in slots.items()}
            rows[keys] = optimizer.step(rows[keys], some, grads, step + 1)
            for name, slot in some.items():
                slots[name][keys] = slot
            reference.apply(keys, grads)
        near(rows, reference.rows, 1e-5)
        for name, part in reference.state.items():
            near(slots[name][reference.steps > 0], part[reference.steps > 0], 1e-4)

    run_drawn(run, EXAMPLES)


@pytest.mark.parametrize("name", quick(["adam", "nadam"]))
def test_a_global_count_is_that_of_calls(name, folders):
    run_drawn(lambda data: check(KINDS[name], data, next(folders), 40, bias_correction="global"))


@pytest.mark.parametrize("name", quick(["adagrad", "rmsprop", "ftrl"]))
def test_rows_are_those_of_the_source_in_a_short_history(name, folders):
    run_drawn(lambda data: check(KINDS[name], data, next(folders), 30))
