"""What an optimizer is, and the checks of its hyperparameters. A frozen value: threads and variables may share it."""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar

import numpy as np

from kvemb.checks.brief import brief
from kvemb.optimizers.clipping import clip_to_norm, clip_values
from kvemb.optimizers.formula import Formula, Function, read, run
from kvemb.rows.schema import SlotShape

# The slot in which a row counts its own steps.
STEPS = "steps"


@dataclass(frozen=True)
class Slot:
    """One piece of an optimizer's state in every row.

    name: a Python name; exports have a column of it. On disk, do not rename. width: elements in a row, None for as many
    as the embedding has. initial: what every element of a new row starts from.
    """

    name: str
    width: int | None = None
    initial: float = 0.0


@dataclass(frozen=True, kw_only=True, repr=False)
class Optimizer(abc.ABC):
    """An optimizer: frozen hyperparameters, the slots a row carries for it, and its formula.

    A step is taken with the sum of a key's gradients, on the rows of the call alone. clip_value: each element of the
    sum is limited to this. clip_norm: a longer sum is scaled to this L2 norm, after clip_value. None: not clipped.

    For those who add one: one of the fields is learning_rate, which kvemb migrate sets. name: how the disk knows it; on
    disk, do not rename. formula: one step on one row, in place, as kvemb.optimizers.formula says. It stands there once:
    kernels are made of it, and NumPy runs it as it is. match: a formula that sets slots which follow the embedding,
    for a row whose embedding is set by anything but a step; None if there are no such slots. Fields are checked as
    check_fields says.
    """

    name: ClassVar[str]
    formula: ClassVar[Function]
    match: ClassVar[Function | None] = None

    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abc.abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots, in the order in which they lie in a row; on disk, do not reorder."""

    @property
    def formulas(self) -> tuple[Function, ...]:
        """The formulas of one step, in order: clipping, weight decay, the optimizer's own."""
        clipping = [(self.clip_value, clip_values), (self.clip_norm, clip_to_norm)]
        return (*(clip for limit, clip in clipping if limit is not None), *self.decay_formulas(), *self.own_formulas())

    def decay_formulas(self) -> tuple[Function, ...]:
        """Return the formulas of weight decay; none without it."""
        return ()

    def own_formulas(self) -> tuple[Function, ...]:
        """Return the formulas of the optimizer itself, without clipping and weight decay."""
        return (self.formula,)

    @property
    def counts_steps(self) -> bool:
        """Whether the variable counts steps for it: calls of apply_gradients, which bias correction then uses."""
        return False

    def numbers(self, function: Function, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return what a formula takes after its rows, attributes of the same names: float64, or in a dtype."""
        formula = read(function)
        return {name: self._number(name, formula, dtype) for name in formula.numbers}

    def _number(self, name: str, formula: Formula, dtype: np.dtype[Any]) -> Any:
        if name in formula.tables:
            return getattr(self, name)
        return (np.float64 if name in formula.wide else dtype.type)(getattr(self, name))

    def step(self, values: Any, slots: Mapping[str, Any], grads: Any, count: int = 0) -> Any:
        """Take one step in NumPy, with the bits of the kernels: what these are held against.

        values (n, dim) in any dtype of floats; grads (n, dim), and slots by name (n, width), in the slots' dtype.
        count: the variable's count of steps, this one included, if it counts them. Returns the new values, and changes
        the slots in place.
        """
        rows = {"w": values.astype(grads.dtype), "g": grads.copy(), **slots}
        if STEPS in slots:
            slots[STEPS][:] = slots[STEPS] + 1
        for function in self.formulas:
            taken: dict[str, Any] = self.numbers(function, grads.dtype)
            if (name := read(function).count) is not None:
                taken[name] = slots[STEPS][:, 0].copy() if STEPS in slots else np.float64(count)
            run(function, rows, taken)
        with np.errstate(all="ignore"):
            return rows["w"].astype(values.dtype)

    def match_slots(self, values: Any, slots: Mapping[str, Any]) -> None:
        """Set, in NumPy, the slots that follow the embedding; arrays as for step()."""
        if self.match is not None and slots:
            dtype = next(iter(slots.values())).dtype
            wide = values.astype(dtype)
            run(self.match, {"w": wide, "g": wide, **slots}, self.numbers(self.match, dtype))

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
        return {"name": self.name, **{field.name: getattr(self, field.name) for field in self._fields()}}

    def __repr__(self) -> str:
        """Return the call that makes it, without those of the options by keyword that have their defaults."""
        told = ((field.name, getattr(self, field.name), field) for field in self._fields())
        parts = [f"{name}={value!r}" for name, value, field in told if not field.kw_only or value != field.default]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _fields(self) -> list[Field[Any]]:
        """The fields in the order of arguments."""
        return sorted(fields(self), key=lambda field: field.kw_only is True)


def check_fields(target: Optimizer) -> None:
    """Check each field by the kind of its default; numbers become floats. Raises TypeError, ValueError.

    A float must be finite and at least 0, or at most 0 where the default is negative. None: None, or finite and above
    0. A bool: a bool. A str is its class's to check.
    """
    for field in fields(target):
        given, what = getattr(target, field.name), f"{type(target).__name__} {field.name}"
        if isinstance(field.default, bool):
            if not isinstance(given, (bool, np.bool_)):
                raise TypeError(f"{what} must be True or False, got {type(given).__name__} {brief(given)}")
            object.__setattr__(target, field.name, bool(given))
        elif isinstance(field.default, float) or (field.default is None and given is not None):
            object.__setattr__(target, field.name, _as_float(given, what, field.default))


def _as_float(given: Any, what: str, default: float | None) -> float:
    """Return a number as check_fields wants it. Raises TypeError, ValueError."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, numbers.Real):
        raise TypeError(f"{what} must be a number, got {type(given).__name__} {brief(given)}")
    try:
        value = float(given)
    except OverflowError:
        value = math.inf
    if default is None:
        fine, wanted = value > 0, "above 0"
    else:
        fine, wanted = (value <= 0, "at most 0") if default < 0 else (value >= 0, "at least 0")
    if not (math.isfinite(value) and fine):
        raise ValueError(f"{what} must be finite and {wanted}, got {brief(given)}")
    return value


def check_at_most(target: Optimizer, most: float, *names: str) -> None:
    """Raise ValueError unless each of these fields is at most that."""
    for name in names:
        if getattr(target, name) > most:
            raise ValueError(f"{type(target).__name__} {name} must be at most {most}, got {getattr(target, name)}")


def check_above_zero(target: Optimizer, name: str, why: str) -> None:
    """Raise ValueError, with the reason, if a field is 0."""
    if getattr(target, name) == 0:
        raise ValueError(f"{type(target).__name__} {name} must be above 0, got 0: {why}")
