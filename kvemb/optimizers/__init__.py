"""Optimizers, one file per family: their slots in a row, their hyperparameters, and the formula of a step.

The names here are public: kvemb.optimizers.Adagrad.

Example:
    >>> items = store.get_variable("items", dim=4, optimizer=kvemb.optimizers.Adagrad(learning_rate=0.1))
    >>> items.apply_gradients([17, 42], np.ones((2, 4), np.float32))
    >>> items.optimizer = kvemb.optimizers.Adagrad(learning_rate=0.05)
    >>> items.optimizer
    Adagrad(learning_rate=0.05, initial_accumulator_value=0.0, epsilon=1e-10)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvemb.checks.brief import brief
from kvemb.checks.declared import from_json
from kvemb.optimizers.adadelta import Adadelta
from kvemb.optimizers.adagrad import Adagrad, RowWiseAdagrad
from kvemb.optimizers.adam import Adam, AdamW, AMSGrad
from kvemb.optimizers.adamax import Adamax
from kvemb.optimizers.base import Optimizer, Slot
from kvemb.optimizers.ftrl import Ftrl
from kvemb.optimizers.lamb import LAMB
from kvemb.optimizers.lion import Lion
from kvemb.optimizers.nadam import NAdam
from kvemb.optimizers.partial_row_wise_adam import PartialRowWiseAdam
from kvemb.optimizers.proximal import ProximalAdagrad, ProximalSGD
from kvemb.optimizers.rmsprop import RMSProp
from kvemb.optimizers.sgd import SGD, Momentum, Nesterov
from kvemb.shared_docs import describe_inherited

__all__ = [
    "KINDS",
    "LAMB",
    "SGD",
    "AMSGrad",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Momentum",
    "NAdam",
    "Nesterov",
    "Optimizer",
    "PartialRowWiseAdam",
    "ProximalAdagrad",
    "ProximalSGD",
    "RMSProp",
    "RowWiseAdagrad",
    "Slot",
    "as_optimizer",
    "optimizer_from_json",
]

_ALL = (
    *(SGD, Momentum, Nesterov, Adagrad, RowWiseAdagrad, Adadelta, RMSProp, Adam, AdamW, AMSGrad, Adamax, NAdam, LAMB),
    *(PartialRowWiseAdam, Ftrl, ProximalAdagrad, ProximalSGD, Lion),
)
# Every optimizer, by name.
KINDS: dict[str, type[Optimizer]] = {kind.name: kind for kind in _ALL}
for _kind in _ALL:
    describe_inherited(_kind)


def as_optimizer(spec: Any, *, required: bool = False) -> Optimizer | None:
    """Return the optimizer of an `optimizer` argument: an object of one of KINDS, or None unless one is required.

    Args:
        spec: The argument.
        required: Whether None is an error. Default: False.

    Returns:
        spec itself.

    Raises:
        TypeError: spec is anything else: a class, a subclass's object, a name.
    """
    # A subclass is refused, because what it adds could not be stored.
    if type(spec) in KINDS.values() or (spec is None and not required):
        return spec  # type: ignore[no-any-return]
    if isinstance(spec, type) and spec in KINDS.values():
        name = spec.__name__
        raise TypeError(f"optimizer must be an object, got the class {name}; use kvemb.optimizers.{name}()")
    kinds, known = "an Optimizer" if required else "None or an Optimizer", ", ".join(each.__name__ for each in _ALL)
    raise TypeError(f"optimizer must be {kinds}, got {brief(spec)}; use one of {known} of kvemb.optimizers")


def optimizer_from_json(data: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that to_json() described.

    Args:
        data: A mapping with "name" and the fields.

    Returns:
        An optimizer with equal to_json().

    Raises:
        UnsupportedFormat: The name or a field is unknown, or a field's value is invalid.
    """
    return from_json(data, "name", KINDS, "optimizer")
