"""An optimizer as a value: frozen hyperparameters, and the slots that a row carries for it.

Safe to share between threads and variables. The arithmetic itself is in the backends' kernels, which know an optimizer
by `name`; each class states the formula that they follow.
"""

from __future__ import annotations

import abc
import math
import numbers
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from kvemb.checks.brief import brief
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
    """An optimizer: frozen hyperparameters, and the slots a row carries for it.

    name: how kernels and the disk know it; on disk, do not rename.
    """

    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots, in the order in which they lie in a row; on disk, do not reorder."""

    @abc.abstractmethod
    def hyperparameters(self) -> tuple[float, ...]:
        """Return the numbers the kernel takes, in the order the class documents."""

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
