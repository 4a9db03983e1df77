"""The base classes of initializers: one row for all keys, or random rows drawn by hashing."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.declared import Declared, as_json
from kvemb.checks.numeric import Number, as_int, fits, is_integer, rounded
from kvemb.checks.ranges import MAX_DIM

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]


class Initializer(Declared, abc.ABC):
    """The base of all initializers, which give the rows of missing keys.

    Two initializers with equal `to_json()` give equal rows. Only the kinds of this module can be stored; `kind` is each
    one's name on disk.
    """

    kind: ClassVar[str]

    @abc.abstractmethod
    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return the rows of keys.

        REQUIRES: check(dim, dtype) passes, as it does for results of as_initializer.

        Args:
            keys: int64 (n,), any order, duplicates allowed. Equal keys get equal rows.
            dim: The number of columns.
            dtype: The dtype of the rows.

        Returns:
            A new C-contiguous array (n, dim) of dtype, with a row for each key.

        Raises:
            ValueError: The initializer is random and has no seed.
        """

    @abc.abstractmethod
    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Check that rows of this dim and dtype can hold the values.

        Args:
            dim: The number of columns.
            dtype: The dtype of the rows.

        Raises:
            TypeError: Rows of this dtype are impossible: random rows of integers.
            ValueError: A value does not fit dtype, or the number of values is not dim.
        """

    def to_json(self) -> dict[str, Any]:
        """Return the initializer as plain JSON.

        Returns:
            A dict of "kind" and the fields, exact to the bit. Non-finite floats become strings.
        """
        return as_json(self, "kind", self.kind)


class Fixed(Initializer):
    """Gives every key the same row."""

    @abc.abstractmethod
    def _values(self, dim: int) -> Sequence[Number]:
        """Return one value for all columns, or `dim` values. Raises ValueError for another number of values."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Check that every value fits dtype: an integer dtype exactly, a float dtype without overflow."""
        dim, dtype = as_int(dim, "dim", 1, MAX_DIM), np.dtype(dtype)
        for value in self._values(dim):
            if not fits(value, dtype):
                raise ValueError(f"initializer must fit {dtype.name}, got {brief(value)}; change it or the value_dtype")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return equal rows for all keys."""
        dtype = np.dtype(dtype)
        values = self._values(dim)
        # Integers are converted to integers directly, because float64 would not keep those beyond 2**53.
        row = np.array([int(v) for v in values]) if is_integer(dtype) else np.array([float(v) for v in values])
        out = np.empty((len(keys), dim), dtype)
        out[:] = rounded(row, dtype)
        return out


class Random(Initializer):
    """Draws rows by hashing (seed, key, column); floats only.

    Attributes:
        seed: The seed of the hash. None: it is derived from the variable's name when a variable is created.
    """

    seed: int | None

    @abc.abstractmethod
    def _reach(self, dim: int) -> float:
        """Return the largest magnitude an element can have."""

    @abc.abstractmethod
    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        """Write rows of float32 or float64 to out (n, dim)."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Check that dtype is a float dtype, and that no element can overflow it."""
        dim, dtype = as_int(dim, "dim", 1, MAX_DIM), np.dtype(dtype)
        if is_integer(dtype):
            raise TypeError(
                f"initializer of {dtype.name} values must be a constant, got {self!r}; "
                "give a number or an array of dim values, or use a float value_dtype"
            )
        reach = self._reach(dim)
        if not fits(reach, dtype):
            raise ValueError(f"initializer must fit {dtype.name}, got {self!r}, which reaches {reach:g}; narrow it")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Draw a row for each key; each row depends only on seed and key."""
        if self.seed is None:
            raise ValueError(
                f"{self!r} has no seed; pass seed=, or draw rows through a variable, whose name gives the seed"
            )
        dtype = np.dtype(dtype)
        drawn = np.empty((len(keys), dim), dtype if dtype == np.float32 else np.float64)
        self._fill(drawn, np.ascontiguousarray(keys, np.int64), np.uint64(self.seed))
        return rounded(drawn, dtype)


def agree(one: Initializer, other: Initializer, dim: int, dtype: npt.DTypeLike) -> bool:
    """Whether both give every key the same row, bit for bit: Zeros() agrees with Constant(0).

    REQUIRES: check(dim, dtype) passes for both.
    """
    if one.to_json() == other.to_json():
        return True
    if not (isinstance(one, Fixed) and isinstance(other, Fixed)):
        return False
    key = np.zeros(1, np.int64)
    return one.rows(key, dim, dtype).tobytes() == other.rows(key, dim, dtype).tobytes()
