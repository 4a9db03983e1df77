"""Optimizers as values: what they hand to the kernels, what they refuse, and their JSON."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

import kvemb
from kvemb.errors import UnsupportedFormat
from kvemb.optimizers import (
    KINDS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Ftrl,
    Optimizer,
    ProximalAdagrad,
    RMSProp,
    RowWiseAdagrad,
    Slot,
    as_optimizer,
    optimizer_from_json,
)

EVERY = [
    *(kind() for kind in KINDS.values()),
    *(SGD(0.1), SGD(0), Adagrad(0.3, 0.1, 1e-7), Adagrad(learning_rate=5e-324), RowWiseAdagrad(0.3, 0.1, 1e-7)),
    *(Adam(0.1, 0.5, 0.75, 0.0, bias_correction="global"), SGD(clip_value=1, clip_norm=2, weight_decay=3)),
    *(
        AdamW(weight_decay=0.5, epsilon_hat=True),
        RMSProp(momentum=0.5, centered=True),
        SGD(weight_decay=0.1, decoupled=True),
    ),
]
# The widths of each optimizer's slots for a dim of 7. Defaults are those of its docstring (test_told_defaults.py).
WIDTHS: dict[str, dict[str, int]] = {
    "sgd": {},
    "momentum": {"velocity": 7},
    "nesterov": {"velocity": 7},
    "adagrad": {"accumulator": 7},
    "row_wise_adagrad": {"accumulator": 1},
    "adadelta": {"v": 7, "u": 7},
    "rmsprop": {"v": 7},
    "adam": {"m": 7, "v": 7, "steps": 1},
    "adamw": {"m": 7, "v": 7, "steps": 1},
    "amsgrad": {"m": 7, "v": 7, "v_max": 7, "steps": 1},
    "adamax": {"m": 7, "u": 7, "steps": 1},
    "nadam": {"m": 7, "v": 7, "steps": 1},
    "lamb": {"m": 7, "v": 7, "steps": 1},
    "partial_row_wise_adam": {"m": 7, "v": 1, "steps": 1},
    "ftrl": {"accumulator": 7, "linear": 7},
    "proximal_adagrad": {"accumulator": 7},
    "proximal_sgd": {},
    "lion": {"m": 7},
}
# What is given by keyword alone; all else has a place.
BY_KEYWORD = {"clip_value", "clip_norm", "bias_correction", "decoupled", "epsilon_hat"}


def test_slots_and_places_of_arguments_are_the_documented_ones():
    assert list(KINDS) == list(WIDTHS)
    for name, kind in KINDS.items():
        assert {shape.name: shape.width for shape in kind().shapes(7)} == WIDTHS[name]
        by_keyword = {each.name for each in fields(kind) if each.kw_only}
        assert by_keyword == (BY_KEYWORD | ({"weight_decay"} if "decoupled" in by_keyword else set())) & {
            each.name for each in fields(kind)
        }
    decaying = [name for name, kind in KINDS.items() if "decoupled" in kind().to_json()]
    assert decaying == [
        *("sgd", "momentum", "nesterov", "adagrad", "row_wise_adagrad", "adadelta", "rmsprop", "adam", "amsgrad"),
        *("adamax", "nadam"),
    ]


def test_slots_start_as_documented():
    assert Adagrad(0.5, 0.25).slots == (Slot("accumulator", None, 0.25),)
    assert RowWiseAdagrad(0.5, 0.25).slots == (Slot("accumulator", 1, 0.25),)
    assert Adam().slots == (Slot("m", None, 0.0), Slot("v", None, 0.0), Slot("steps", 1, 0.0))
    assert Adam(bias_correction="global").slots == Adam().slots[:2]
    assert [slot.name for slot in RMSProp(momentum=0.1, centered=True).slots] == ["v", "mean", "velocity"]
    assert Ftrl(0.1, initial_accumulator_value=0.5).slots == (Slot("accumulator", None, 0.5), Slot("linear"))


def test_numbers_are_those_that_a_formula_names():
    (formula,) = Adam().formulas
    numbers = Adam(0.1).numbers(formula, np.dtype(np.float32))
    epsilons = {"epsilon": np.float32(1e-8), "epsilon_hat": 0}
    assert numbers == {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.999} | epsilons
    assert [type(number) for number in numbers.values()] == [np.float64] * 3 + [np.float32] * 2


def test_options_that_are_off_add_no_formula():
    assert len(SGD().formulas) == len(SGD(decoupled=True).formulas) == len(AdamW(weight_decay=0).formulas) == 1
    names = [function.__name__ for function in Adam(clip_value=1, clip_norm=1, weight_decay=1).formulas]
    assert names == ["clip_values", "clip_to_norm", "coupled", "formula"]
    assert [each.__name__ for each in AdamW().formulas] == ["decoupled", "formula"]


def test_a_repr_has_the_arguments_that_differ():
    assert repr(SGD(0.5)) == "SGD(learning_rate=0.5)"
    assert repr(SGD(0.5, clip_norm=1)) == "SGD(learning_rate=0.5, clip_norm=1.0)"


def test_numbers_may_change_and_slots_may_not():
    assert Adagrad(0.5).fits(Adagrad(0.25, 0.1))
    assert not Adagrad().fits(SGD())
    assert not SGD().fits(Adagrad())
    assert not RowWiseAdagrad().fits(Adagrad())
    assert not Adam().fits(Adam(bias_correction="global"))
    assert not RMSProp().fits(RMSProp(momentum=0.5))
    assert Adam(epsilon_hat=True).fits(Adam())
    assert RMSProp(momentum=0.1).fits(RMSProp(momentum=0.5, clip_norm=1.0, weight_decay=0.1))


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_every_parameter_says_what_it_accepts(make):
    for field in fields(make):
        for value in ("no", 1j, [0.1], math.nan, 10**400, 1e-9 if field.name == "learning_rate_power" else -1e-9):
            with pytest.raises((TypeError, ValueError), match=f"^{make.__name__} {field.name} must be "):
                make(**{field.name: value})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Adam(beta_2=0.9999999), "beta_2 must be finite and at least 0 and at most 0.999999, got 0.9999999"),
        (lambda: ProximalAdagrad(initial_accumulator_value=0), "must be finite and above 0, got 0; elements without"),
        (lambda: Ftrl(0), "Ftrl learning_rate must be finite and above 0, got 0; Ftrl divides by it"),
        (lambda: SGD(clip_norm=0), "SGD clip_norm must be finite and above 0, got 0"),
        (lambda: Adam(bias_correction="rows"), "bias_correction must be 'row' or 'global', got 'rows'"),
    ],
)
def test_limits_of_one_parameter_are_told(make, why):
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_json_brings_back_the_same_optimizer(optimizer):
    assert optimizer_from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


def test_unknown_json_is_refused():
    for data in ({}, None, {"name": "adamx"}, {"name": "sgd", "x": 1}, {"name": "sgd", "learning_rate": -1}):
        with pytest.raises(UnsupportedFormat):
            optimizer_from_json(data)


def test_the_argument_is_none_or_an_optimizer():
    mine = Adagrad()
    assert as_optimizer(None) is None
    assert as_optimizer(mine) is mine

    class Mine(SGD):
        """Of a user's own, which no manifest could name."""

    class Lines:
        """Described in several lines, as PyTorch's optimizers are."""

        def __repr__(self) -> str:
            return "a\nb"

    for spec in ("sgd", Mine, Optimizer, 0.1, Mine()):
        with pytest.raises(TypeError, match="optimizer must be None or an Optimizer"):
            as_optimizer(spec)
    with pytest.raises(TypeError, match="optimizer must be None or an Optimizer, got a b; use"):
        as_optimizer(Lines())
    with pytest.raises(TypeError, match="optimizer must be an Optimizer, got None"):
        as_optimizer(None, required=True)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_a_class_is_refused_with_the_call_that_makes_an_object(kind):
    with pytest.raises(TypeError) as caught:
        as_optimizer(kind)
    made = str(caught.value).partition("; use ")[2]
    assert eval(made, {"kvemb": kvemb}) == kind()


def test_setting_a_number_of_an_optimizer_tells_how_a_variable_gets_another():
    chosen = kvemb.optimizers.Adagrad(0.1)
    with pytest.raises(FrozenInstanceError, match=r"variable\.optimizer = kvemb\.optimizers\.Adagrad\(\.\.\.\)"):
        chosen.learning_rate = 0.01
    assert chosen == kvemb.optimizers.Adagrad(0.1)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            Adagrad,
            {"lr": 0.1},
            "Adagrad has no argument lr, which is learning_rate in kvemb; its arguments are l",
        ),
        (Adam, {"learning_rate": 0.1, "eps": 1e-6}, "Adam has no argument eps, which is epsilon in kvemb"),
        (Adam, {"betas": (0.9, 0.99)}, "Adam has no argument betas, which is beta_1 and beta_2 in kvemb"),
    ],
)
def test_names_of_hyperparameters_elsewhere_are_answered_with_those_here(make, arguments, message):
    """Python's own error named neither."""
    with pytest.raises(TypeError, match=message):
        make(**arguments)


def test_an_optimizer_of_a_user_may_have_torchs_names():
    class Renamed(SGD):
        def __init__(self, **arguments):
            super().__init__(learning_rate=arguments.pop("lr"), **arguments)

    assert Renamed(lr=0.5).learning_rate == 0.5
    with pytest.raises(TypeError, match="abstract"):
        kvemb.optimizers.Optimizer(lr=0.5)


def test_the_signature_is_that_of_the_constructor():
    """Sphinx asks for it in this way, and would else show that of __new__."""
    assert list(Optimizer.__signature__.parameters) == ["clip_value", "clip_norm"]
    assert list(SGD.__signature__.parameters)[:2] == ["learning_rate", "clip_value"]
    assert inspect.signature(SGD) == SGD.__signature__
