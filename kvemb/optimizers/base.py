"""An optimizer as a value: frozen hyperparameters, the slots that a row carries for it, and its formula.

Safe to share between threads and variables.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from kvemb.checks.brief import brief
from kvemb.optimizers.formula import read, run
from kvemb.rows.schema import SlotShape


@dataclass(frozen=True)
class Slot:
    """One piece of an optimizer's state in every row.

    name: a Python name; exports have a column of it. On disk, do not rename. width: elements in a row, None for as many
    as the embedding has. initial: what every element of a new row starts from.
    """

    name: str
    width: int | None = None
    initial: float = 0.0


class Optimizer(abc.ABC):
    """An optimizer: frozen hyperparameters, the slots a row carries for it, and its formula.

    One of the hyperparameters is learning_rate, which kvemb migrate sets; none is negative. name: how the disk knows
    it; on disk, do not rename. formula: one step on one row, in place, as kvemb.optimizers.formula says. It stands
    there once: kernels are made of it, and NumPy runs it as it is.
    """

    name: ClassVar[str]
    formula: ClassVar[Callable[..., None]]

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots, in the order in which they lie in a row; on disk, do not reorder."""

    def numbers(self, dtype: np.dtype[Any]) -> list[Any]:
        """Return what the formula takes after the slots, attributes of the same names: float64, or in a dtype."""
        found = read(self.formula)
        return [(np.float64 if name in found.wide else dtype.type)(getattr(self, name)) for name in found.numbers]

    def step(self, values: Any, slots: Mapping[str, Any], grads: Any) -> Any:
        """Take one step in NumPy, with the bits of the kernels: what these are held against.

        values (n, dim) in any dtype of floats; grads (n, dim), and slots by name (n, width), in the slots' dtype.
        Returns the new values, and changes the slots in place.
        """
        wide = values.astype(grads.dtype)
        run(self.formula, [wide, grads, *(slots[slot.name] for slot in self.slots)], self.numbers(grads.dtype))
        with np.errstate(all="ignore"):
            return wide.astype(values.dtype)

    def shapes(self, dim: int) -> tuple[SlotShape, ...]:
        """Return the slots of rows of `dim` values, as a schema has them."""
        return tuple(SlotShape(slot.name, dim if slot.width is None else slot.width) for slot in self.slots)

    def fits(self, other: Optimizer) -> bool:
        """Whether rows that were trained with the other one can go on with this one: it has the same name and slots.

        Where slots of new rows start, and all numbers, may differ.
        """
        mine, theirs = ([(slot.name, slot.width) for slot in each.slots] for each in (self, other))
        return (self.name, mine) == (other.name, theirs)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, "name" and the fields; floats survive exactly."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **values}


def check_not_negative(target: Optimizer, *names: str) -> None:
    """Make each of these hyperparameters a float. Raises TypeError; ValueError unless it is finite and at least 0."""
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


def check_at_most(target: Optimizer, most: float, *names: str) -> None:
    """Raise ValueError unless each of these hyperparameters is at most that."""
    for name in names:
        if getattr(target, name) > most:
            raise ValueError(f"{type(target).__name__} {name} must be at most {most}, got {getattr(target, name)}")
