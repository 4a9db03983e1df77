"""Optimizers as values: what they hand to the kernels, what they refuse, and their JSON."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import FrozenInstanceError

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
from kvemb.rows.schema import SlotShape

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
# Name, defaults in the order of arguments, and the widths of slots for a dim of 7.
DOCUMENTED: dict[str, tuple[dict[str, object], dict[str, int]]] = {
    "sgd": ({"learning_rate": 0.001}, {}),
    "momentum": ({"learning_rate": 0.001, "momentum": 0.9}, {"velocity": 7}),
    "nesterov": ({"learning_rate": 0.001, "momentum": 0.9}, {"velocity": 7}),
    "adagrad": ({"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-10}, {"accumulator": 7}),
    "row_wise_adagrad": (
        {"learning_rate": 0.01, "initial_accumulator_value": 0.0, "epsilon": 1e-10},
        {"accumulator": 1},
    ),
    "adadelta": ({"learning_rate": 1.0, "rho": 0.9, "epsilon": 1e-6}, {"v": 7, "u": 7}),
    "rmsprop": (
        {"learning_rate": 0.01, "rho": 0.99, "epsilon": 1e-8, "momentum": 0.0, "centered": False},
        {"v": 7},
    ),
    "adam": (
        {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8},
        {"m": 7, "v": 7, "steps": 1},
    ),
    "adamw": (
        {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01},
        {"m": 7, "v": 7, "steps": 1},
    ),
    "amsgrad": (
        {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8},
        {"m": 7, "v": 7, "v_max": 7, "steps": 1},
    ),
    "adamax": (
        {"learning_rate": 0.002, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8},
        {"m": 7, "u": 7, "steps": 1},
    ),
    "nadam": (
        {"learning_rate": 0.002, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "momentum_decay": 0.004},
        {"m": 7, "v": 7, "steps": 1},
    ),
    "lamb": (
        {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "weight_decay": 0.0},
        {"m": 7, "v": 7, "steps": 1},
    ),
    "partial_row_wise_adam": (
        {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0},
        {"m": 7, "v": 1, "steps": 1},
    ),
    "ftrl": (
        {"learning_rate": 0.001, "learning_rate_power": -0.5, "initial_accumulator_value": 0.1}
        | {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0},
        {"accumulator": 7, "linear": 7},
    ),
    "proximal_adagrad": (
        {"learning_rate": 0.01, "initial_accumulator_value": 0.1}
        | {"l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0},
        {"accumulator": 7},
    ),
    "proximal_sgd": (
        {"learning_rate": 0.01, "l1_regularization_strength": 0.0, "l2_regularization_strength": 0.0},
        {},
    ),
    "lion": ({"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.99, "weight_decay": 0.0}, {"m": 7}),
}
BY_KEYWORD = {"clip_value": None, "clip_norm": None, "bias_correction": "row", "weight_decay": 0.0, "decoupled": False}
BY_KEYWORD |= {"epsilon_hat": False}


def test_defaults_and_slots_are_the_documented_ones():
    assert list(KINDS) == list(DOCUMENTED)
    for name, kind in KINDS.items():
        defaults, widths = DOCUMENTED[name]
        told = kind().to_json()
        assert {field: told.pop(field) for field in ("name", *defaults)} == {"name": name, **defaults}
        assert told == {field: BY_KEYWORD[field] for field in told}
        assert kind(*defaults.values()) == kind()
        assert {shape.name: shape.width for shape in kind().shapes(7)} == widths
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
    assert not Adam().fits(Adam(bias_correction="global"))
    assert not RMSProp().fits(RMSProp(momentum=0.5))
    assert Adam(epsilon_hat=True).fits(Adam())
    assert RMSProp(momentum=0.1).fits(RMSProp(momentum=0.5, clip_norm=1.0, weight_decay=0.1))


@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_a_beta_that_outlasts_the_count_of_steps_is_refused(name):
    with pytest.raises(ValueError, match=rf"Adam {name} must be at most 0\.999999, got 0\.9999999"):
        Adam(**{name: 0.9999999})


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_parameters_are_checked_when_an_optimizer_is_made(make):
    for name, default in make().to_json().items():
        if name == "name":
            continue
        wrong = [True, np.True_, "0.1", 1j, [0.1]]
        if isinstance(default, bool):
            for value in (None, 1, 0.0, "no"):
                with pytest.raises(TypeError, match=f"{make.__name__} {name} must be True or False"):
                    make(**{name: value})
            continue
        if isinstance(default, str):
            for value in (*wrong, None, "rows"):
                with pytest.raises(ValueError, match=f"{make.__name__} {name} must be 'row' or 'global'"):
                    make(**{name: value})
            continue
        end = "above 0" if default is None else "at most 0" if default < 0 else "at least 0"
        for value in (1e-9 if end == "at most 0" else -1e-9, math.nan, math.inf, 10**400):
            with pytest.raises(ValueError, match=f"{make.__name__} {name} must be finite and {end}"):
                make(**{name: value})
        for value in (*wrong, *([] if default is None else [None])):
            with pytest.raises(TypeError, match=f"{make.__name__} {name} must be a number"):
                make(**{name: value})
        for value in (np.float32(0.5), np.int64(1)):
            if not (end == "at most 0" or (name.startswith("beta") and value == 1)):
                assert type(getattr(make(**{name: value}), name)) is float


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: ProximalAdagrad(initial_accumulator_value=0),
            "initial_accumulator_value must be above 0, got 0",
        ),
        (lambda: Ftrl(0), "Ftrl learning_rate must be above 0, got 0: Ftrl divides by it"),
        (lambda: SGD(clip_norm=0), "SGD clip_norm must be finite and above 0"),
    ],
)
def test_numbers_that_would_divide_by_0_are_refused(make, why):
    with pytest.raises(ValueError, match=why):
        make()


@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_json_brings_back_the_same_optimizer(optimizer):
    assert optimizer_from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


@pytest.mark.parametrize(
    "data",
    [
        *({}, None, [], {"name": "adamx"}, {"name": 3}, {"name": []}, {"name": "sgd", "x": 1}),
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


def test_optimizers_are_frozen_and_abstract():
    with pytest.raises(AttributeError):
        SGD().learning_rate = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="abstract"):
        Optimizer()  # type: ignore[abstract]


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
