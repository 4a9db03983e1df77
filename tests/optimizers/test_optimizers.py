"""Optimizers as values: what they hand to the kernels, what they refuse, and their JSON."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import numpy as np
import pytest

from kvemb.errors import UnsupportedFormat
from kvemb.optimizers import SGD, Adagrad, Optimizer, Slot, as_optimizer, optimizer_from_json
from kvemb.rows.schema import SlotShape

EVERY = [SGD(), SGD(0.1), SGD(0), Adagrad(), Adagrad(0.3, 0.1, 1e-7), Adagrad(learning_rate=5e-324)]


def test_the_kernels_get_slots_and_numbers_in_the_documented_order():
    assert (SGD.name, SGD(0.5).slots, SGD(0.5).hyperparameters()) == ("sgd", (), (0.5,))
    adagrad = Adagrad(0.5, 0.25, 0.125)
    assert (Adagrad.name, adagrad.slots) == ("adagrad", (Slot("accumulator", None, 0.25),))
    assert adagrad.hyperparameters() == (0.5, 0.125)
    assert Adagrad() == Adagrad(learning_rate=0.01, initial_accumulator_value=0.0, epsilon=1e-10)


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_numbers_are_floats(optimizer):
    assert all(type(value) is float for value in optimizer.hyperparameters())
    assert all(type(slot.initial) is float for slot in optimizer.slots)


def test_slots_are_as_wide_as_the_row_unless_they_say():
    assert Adagrad().shapes(7) == (SlotShape("accumulator", 7),)
    assert SGD().shapes(7) == ()


def test_numbers_may_change_and_slots_may_not():
    assert Adagrad(0.5).fits(Adagrad(0.25, 0.1))
    assert not Adagrad().fits(SGD())
    assert not SGD().fits(Adagrad())


@pytest.mark.parametrize("make", [SGD, Adagrad])
def test_parameters_are_checked_when_an_optimizer_is_made(make):
    for name in (field.name for field in fields(make)):
        for value in (-1e-9, math.nan, math.inf, 10**400):
            with pytest.raises(ValueError, match=f"{make.__name__} {name} must be finite and at least 0"):
                make(**{name: value})
        for value in (True, np.True_, None, "0.1", 1j, [0.1]):
            with pytest.raises(TypeError, match=f"{make.__name__} {name} must be a number"):
                make(**{name: value})
        for value in (1, np.float32(0.5), np.int64(3)):
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
    for spec in ("sgd", SGD, 0.1):
        with pytest.raises(TypeError, match="optimizer must be None or an Optimizer"):
            as_optimizer(spec)


def test_optimizers_are_frozen_and_abstract():
    with pytest.raises(AttributeError):
        SGD().learning_rate = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()
