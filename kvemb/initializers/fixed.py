"""Initializers that give every key the same row. Frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.numeric import Number, as_number
from kvemb.initializers.base import Fixed, set_field


@dataclass(frozen=True)
class Zeros(Fixed):
    """Every element is 0: the default initializer."""

    kind: ClassVar[str] = "zeros"

    def _values(self, dim: int) -> Sequence[Number]:
        return (0,)


@dataclass(frozen=True)
class Ones(Fixed):
    """Every element is 1."""

    kind: ClassVar[str] = "ones"

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

    kind: ClassVar[str] = "constant"

    value: Number

    def __post_init__(self) -> None:
        set_field(self, "value", as_number(self.value, "Constant value"))

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

    kind: ClassVar[str] = "row"

    values: tuple[Number, ...]

    def __post_init__(self) -> None:
        if isinstance(self.values, (str, bytes)) or not isinstance(self.values, (tuple, list, np.ndarray)):
            raise TypeError(f"Row values must be a sequence of numbers, got {brief(self.values)}")
        if isinstance(self.values, np.ndarray) and self.values.ndim != 1:
            raise ValueError(f"Row values must have one dimension, got shape {self.values.shape}; reshape to (dim,)")
        if not len(self.values):
            raise ValueError("Row values must hold one value for each column, got none")
        set_field(self, "values", tuple(as_number(value, "Row values") for value in self.values))

    def _values(self, dim: int) -> Sequence[Number]:
        if len(self.values) != dim:
            raise ValueError(f"initializer must have dim = {dim} values, got {len(self.values)}; give one per column")
        return self.values
