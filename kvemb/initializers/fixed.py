"""Initializers that give every key the same row. Frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.declared import accepts
from kvemb.checks.numeric import Number, as_number
from kvemb.initializers.base import Fixed


def _as_values(values: Any, what: str) -> tuple[Number, ...]:
    """Return a sequence of numbers as a tuple. Raises TypeError, ValueError."""
    if isinstance(values, (str, bytes)) or not isinstance(values, (tuple, list, np.ndarray)):
        raise TypeError(f"{what} must be a sequence of numbers, got {brief(values)}")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"{what} must have one dimension, got shape {values.shape}; reshape to (dim,)")
    if not len(values):
        raise ValueError(f"{what} must hold one value for each column, got none")
    return tuple(as_number(value, what) for value in values)


@dataclass(frozen=True)
class Zeros(Fixed):
    """Every element is 0: the default initializer."""

    kind = "zeros"

    def _values(self, dim: int) -> Sequence[Number]:
        return (0,)


@dataclass(frozen=True)
class Ones(Fixed):
    """Every element is 1."""

    kind = "ones"

    def _values(self, dim: int) -> Sequence[Number]:
        return (1,)


@dataclass(frozen=True)
class Constant(Fixed):
    """Every element is the same number.

    Args:
        value: A real number. NaN and infinities are allowed in float dtypes. An integer dtype must hold it exactly.

    Raises:
        TypeError: value is not a real number.
    """

    kind = "constant"

    value: int | float = accepts(as_number)

    def _values(self, dim: int) -> Sequence[Number]:
        return (self.value,)


@dataclass(frozen=True)
class Row(Fixed):
    """A default row: one value for each column.

    Args:
        values: A tuple, list or one-dimensional array of `dim` real numbers.

    Raises:
        TypeError: values is not such a sequence, or an element is not a real number.
        ValueError: The array has more than one dimension, or values is empty.
    """

    kind = "row"

    values: tuple[Number, ...] = accepts(_as_values)

    def _values(self, dim: int) -> Sequence[Number]:
        if len(self.values) != dim:
            raise ValueError(f"initializer must have dim = {dim} values, got {len(self.values)}; give one per column")
        return self.values
