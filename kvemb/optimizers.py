"""What a training step does to a row: which slots it keeps, how they start, and the numbers its formula takes.

Frozen values, safe to share between threads and variables. The arithmetic itself is in the backends' kernels, which
know an optimizer by `name`; each class here states the formula that they follow.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from kvemb.checks.brief import brief
from kvemb.errors import UnsupportedFormat


class Optimizer(abc.ABC):
    """An optimizer: frozen hyperparameters, and the slots a row carries for it.

    name: how kernels and the disk know it; on disk, do not rename.
    slots: names of the slots, each `dim` wide, in the order they lie in a row; on disk, do not reorder.
    """

    name: ClassVar[str]
    slots: ClassVar[tuple[str, ...]] = ()

    def slot_initial(self) -> tuple[float, ...]:
        """Return the value every element of a new row's slots starts from, one for each of `slots`."""
        return ()

    @abc.abstractmethod
    def hyperparameters(self) -> tuple[float, ...]:
        """Return the numbers the kernel takes, in the order the class documents."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, "name" and the fields; floats survive exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **values}


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: row -= learning_rate * g. Hyperparameters: (learning_rate,)."""

    name: ClassVar[str] = "sgd"

    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        _check_not_negative(self, "learning_rate")

    def hyperparameters(self) -> tuple[float, ...]:
        """Return (learning_rate,)."""
        return (self.learning_rate,)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad as torch.optim.Adagrad has it, without decay (Duchi, Hazan, Singer, JMLR 12, 2011).

    accumulator += g * g; row -= learning_rate * g / (sqrt(accumulator) + epsilon).
    Hyperparameters: (learning_rate, epsilon). TensorFlow starts the accumulator at 0.1, PyTorch at 0.
    """

    name: ClassVar[str] = "adagrad"
    slots: ClassVar[tuple[str, ...]] = ("accumulator",)

    learning_rate: float = 0.01
    initial_accumulator_value: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        _check_not_negative(self, "learning_rate", "initial_accumulator_value", "epsilon")

    def slot_initial(self) -> tuple[float, ...]:
        """Return (initial_accumulator_value,)."""
        return (self.initial_accumulator_value,)

    def hyperparameters(self) -> tuple[float, ...]:
        """Return (learning_rate, epsilon)."""
        return (self.learning_rate, self.epsilon)


_NAMES: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adagrad)}


def as_optimizer(spec: Any) -> Optimizer | None:
    """Return the optimizer of an `optimizer` argument: None or an Optimizer. Raises TypeError for anything else."""
    if spec is None or isinstance(spec, Optimizer):
        return spec
    known = ", ".join(f"{kind.__name__}(...)" for kind in _NAMES.values())
    raise TypeError(f"optimizer must be None or an Optimizer, got {spec!r}; use one of {known} from kvemb.optimizers")


def optimizer_from_json(data: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer that to_json() gave. Raises UnsupportedFormat for a name or a field it does not know."""
    name = data.get("name") if isinstance(data, Mapping) else None
    found = _NAMES.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(_NAMES)
        raise UnsupportedFormat(f"optimizer must be one of {known}, got {brief(data)}; use the kvemb that wrote it")
    try:
        return found(**{field: value for field, value in data.items() if field != "name"})
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"optimizer {brief(data)} cannot be read: {error}") from error


def _check_not_negative(target: Optimizer, *names: str) -> None:
    for name in names:
        given, what = getattr(target, name), f"{type(target).__name__} {name}"
        if isinstance(given, (bool, np.bool_)) or not isinstance(given, numbers.Real):
            raise TypeError(f"{what} must be a number, got {type(given).__name__} {brief(given)}")
        try:
            value = float(given)
        except OverflowError:
            value = math.inf
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{what} must be finite and at least 0, got {brief(given)}")
        object.__setattr__(target, name, value)
