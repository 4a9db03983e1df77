"""Optimizers as values: what they hand to the kernels, what they refuse, and their JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest

from kvemb.errors import UnsupportedFormat
from kvemb.optimizers import (
    KINDS,
    SGD,
    Adagrad,
    Adam,
    Optimizer,
    RowWiseAdagrad,
    Slot,
    as_optimizer,
    optimizer_from_json,
)
from kvemb.rows.schema import SlotShape

EVERY = [
    *(SGD(), SGD(0.1), SGD(0), Adagrad(), Adagrad(0.3, 0.1, 1e-7), Adagrad(learning_rate=5e-324)),
    *(RowWiseAdagrad(), RowWiseAdagrad(0.3, 0.1, 1e-7), Adam(), Adam(0.1, 0.5, 0.75, 0.0)),
]


def test_slots_and_numbers_are_the_documented_ones():
    assert list(KINDS) == ["sgd", "adagrad", "row_wise_adagrad", "adam"]
    assert SGD(0.5).slots == ()
    assert Adagrad(0.5, 0.25).slots == (Slot("accumulator", None, 0.25),)
    assert RowWiseAdagrad(0.5, 0.25).slots == (Slot("accumulator", 1, 0.25),)
    assert Adam().slots == (Slot("m", None, 0.0), Slot("v", None, 0.0), Slot("steps", 1, 0.0))
    numbers = Adam(0.1).numbers(np.dtype(np.float32))
    assert numbers == [0.1, 0.9, 0.999, np.float32(1e-8)]
    assert [type(number) for number in numbers] == [np.float64, np.float64, np.float64, np.float32]
    assert Adagrad(0.1, 0.2, 0.3).numbers(np.dtype(np.float64)) == [0.1, 0.3]
    for kind in (Adagrad, RowWiseAdagrad):
        assert kind() == kind(learning_rate=0.01, initial_accumulator_value=0.0, epsilon=1e-10)
    assert Adam() == Adam(learning_rate=0.001, beta_1=0.9, beta_2=0.999, epsilon=1e-8)


def test_slots_are_as_wide_as_the_row_unless_they_say():
    assert Adagrad().shapes(7) == (SlotShape("accumulator", 7),)
    assert RowWiseAdagrad().shapes(7) == (SlotShape("accumulator", 1),)
    assert Adam().shapes(7) == (SlotShape("m", 7), SlotShape("v", 7), SlotShape("steps", 1))
    assert SGD().shapes(7) == ()


def test_numbers_may_change_and_slots_may_not():
    assert Adagrad(0.5).fits(Adagrad(0.25, 0.1))
    assert not Adagrad().fits(SGD())
    assert not SGD().fits(Adagrad())
    assert not RowWiseAdagrad().fits(Adagrad())


@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_a_beta_that_outlasts_the_count_of_steps_is_refused(name):
    with pytest.raises(ValueError, match=rf"Adam {name} must be at most 0\.999999, got 0\.9999999"):
        Adam(**{name: 0.9999999})


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_parameters_are_checked_when_an_optimizer_is_made(make):
    for name in (field.name for field in fields(make)):
        for value in (-1e-9, math.nan, math.inf, 10**400):
            with pytest.raises(ValueError, match=f"{make.__name__} {name} must be finite and at least 0"):
                make(**{name: value})
        for value in (True, np.True_, None, "0.1", 1j, [0.1]):
            with pytest.raises(TypeError, match=f"{make.__name__} {name} must be a number"):
                make(**{name: value})
        for value in (np.float32(0.5), np.int64(0)):
            assert type(getattr(make(**{name: value}), name)) is float


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_json_brings_back_the_same_optimizer(optimizer):
    assert optimizer_from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


@pytest.mark.parametrize(
    "data",
    [
        *({}, None, [], {"name": "adamw"}, {"name": 3}, {"name": []}, {"name": "sgd", "x": 1}),
        {"name": "sgd", "learning_rate": -1},
    ],
    ids=repr,
)
def test_unknown_json_is_refused(data):
    with pytest.raises(UnsupportedFormat):
        optimizer_from_json(data)


def test_the_argument_is_none_or_an_optimizer():
    mine = Adagrad()
    assert as_optimizer(None) is None
    assert as_optimizer(mine) is mine

    class Mine(SGD):
        """Of a user's own, which no manifest could name."""

    for spec in ("sgd", SGD, 0.1, Mine()):
        with pytest.raises(TypeError, match="optimizer must be None or an Optimizer"):
            as_optimizer(spec)


def test_optimizers_are_frozen_and_abstract():
    with pytest.raises(AttributeError):
        SGD().learning_rate = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()  # type: ignore[abstract]
