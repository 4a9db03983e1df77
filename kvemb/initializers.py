"""The rows that missing keys read: each a pure function of (seed, key, column).

The same on every machine, in every batch, shard and order, forever: elements come from an integer hash and from IEEE
`+ - * /` and `sqrt` in float64 alone, then are rounded to the dtype once (bfloat16 through float32, as ml_dtypes does).
Initializers are frozen values; any thread may use them. What a kind gives is part of the format.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import (
    Number,
    as_number,
    check_finite,
    fits,
    from_plain,
    is_integer,
    is_number,
    rounded,
    to_plain,
)
from kvemb.errors import UnsupportedFormat
from kvemb.rows.random_kernels import NORMAL_REACH, TWO_SIGMA_MASS, fill_normal, fill_uniform

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]


class Initializer(abc.ABC):
    """What a missing key reads. Two initializers with equal `to_json()` give equal rows.

    Only the kinds of this module can be stored; `kind` is each one's name on disk.
    """

    kind: ClassVar[str]

    @abc.abstractmethod
    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return a fresh (n, dim) array of dtype, C-contiguous: a row for each key.

        keys: int64 (n,), any order, duplicates allowed; equal keys get equal rows.
        REQUIRES: check(dim, dtype) passes, as it does for what as_initializer returned.
        """

    @abc.abstractmethod
    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Raise ValueError where rows of this dim and dtype cannot hold the values, TypeError where the kind cannot."""

    def agrees_with(self, other: Initializer, dim: int, dtype: npt.DTypeLike) -> bool:
        """Say whether both give every key the same row, bit for bit: Zeros() agrees with Constant(0).

        REQUIRES: check(dim, dtype) passes for both.
        """
        if self.to_json() == other.to_json():
            return True
        if not (isinstance(self, _Fixed) and isinstance(other, _Fixed)):
            return False
        key = np.zeros(1, np.int64)
        return self.rows(key, dim, dtype).tobytes() == other.rows(key, dim, dtype).tobytes()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, "kind" and the fields, exact to the bit. Floats that are not finite become text."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind, **{name: to_plain(value) for name, value in values.items()}}


class _Fixed(Initializer):
    """A row that is the same for every key."""

    @abc.abstractmethod
    def _values(self, dim: int) -> Sequence[Number]:
        """Return one value for all columns, or `dim` of them; ValueError if they are another number."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Raise ValueError unless every value fits dtype: an integer dtype exactly, a float dtype without overflow."""
        dtype = np.dtype(dtype)
        for value in self._values(dim):
            if not fits(value, dtype):
                raise ValueError(f"initializer must fit {dtype.name}, got {brief(value)}; change it or the value_dtype")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return a fresh (n, dim) array of dtype, every row the same."""
        dtype = np.dtype(dtype)
        values = self._values(dim)
        # Integers go to integers directly: float64 would lose those beyond 2**53.
        row = np.array([int(v) for v in values]) if is_integer(dtype) else np.array([float(v) for v in values])
        out = np.empty((len(keys), dim), dtype)
        out[:] = rounded(row, dtype)
        return out


class _Random(Initializer):
    """A row drawn by hashing (seed, key, column), no integers. seed None: that of the variable (kvemb.seeding)."""

    seed: int | None

    @abc.abstractmethod
    def _reach(self, dim: int) -> float:
        """Return the largest magnitude an element can have."""

    @abc.abstractmethod
    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        """Write rows of float32 or float64 to out (n, dim)."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Raise TypeError for an integer dtype, ValueError where an element could overflow dtype."""
        dtype = np.dtype(dtype)
        if is_integer(dtype):
            raise TypeError(
                f"initializer of {dtype.name} values must be a constant, got {self!r}; "
                "give a number or an array of dim values, or use a float value_dtype"
            )
        reach = self._reach(dim)
        if not fits(reach, dtype):
            raise ValueError(f"initializer must fit {dtype.name}, got {self!r}, which reaches {reach:g}; narrow it")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return a fresh (n, dim) array of dtype, each row a function of (seed, key) alone."""
        if self.seed is None:
            raise ValueError(f"{self!r} has no seed: give it one, or let a variable, whose name gives it, draw rows")
        dtype = np.dtype(dtype)
        drawn = np.empty((len(keys), dim), dtype if dtype == np.float32 else np.float64)
        self._fill(drawn, np.ascontiguousarray(keys, np.int64), np.uint64(self.seed))
        return rounded(drawn, dtype)


@dataclass(frozen=True)
class Zeros(_Fixed):
    """Every element 0: the default."""

    kind: ClassVar[str] = "zeros"

    def _values(self, dim: int) -> Sequence[Number]:
        return (0,)


@dataclass(frozen=True)
class Ones(_Fixed):
    """Every element 1."""

    kind: ClassVar[str] = "ones"

    def _values(self, dim: int) -> Sequence[Number]:
        return (1,)


@dataclass(frozen=True)
class Constant(_Fixed):
    """Every element `value`: a real number; NaN and infinities are allowed in float dtypes."""

    kind: ClassVar[str] = "constant"

    value: Number

    def __post_init__(self) -> None:
        _set(self, "value", as_number(self.value, "Constant value"))

    def _values(self, dim: int) -> Sequence[Number]:
        return (self.value,)


@dataclass(frozen=True)
class Row(_Fixed):
    """A default row: one value for each column, from a tuple, list or one-dimensional array of `dim` real numbers."""

    kind: ClassVar[str] = "row"

    values: tuple[Number, ...]

    def __post_init__(self) -> None:
        if isinstance(self.values, (str, bytes)) or not isinstance(self.values, (tuple, list, np.ndarray)):
            raise TypeError(f"Row values must be a sequence of numbers, got {brief(self.values)}")
        if isinstance(self.values, np.ndarray) and self.values.ndim != 1:
            raise ValueError(f"Row values must have one dimension, got shape {self.values.shape}; reshape to (dim,)")
        if not len(self.values):
            raise ValueError("Row values must hold one value for each column, got none")
        _set(self, "values", tuple(as_number(value, "Row values") for value in self.values))

    def _values(self, dim: int) -> Sequence[Number]:
        if len(self.values) != dim:
            raise ValueError(f"initializer must have dim = {dim} values, got {len(self.values)}; give one a column")
        return self.values


@dataclass(frozen=True)
class RandomUniform(_Random):
    """Uniform on [minval, maxval); rounding to the dtype may give maxval itself."""

    kind: ClassVar[str] = "random_uniform"

    minval: float = -0.05
    maxval: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        check_finite(self, "minval", "maxval")
        if self.minval > self.maxval:
            raise ValueError(f"RandomUniform minval must be at most maxval, got {self.minval} > {self.maxval}")
        if not math.isfinite(self.maxval - self.minval):
            raise ValueError(f"RandomUniform maxval - minval must be finite, got {self.minval} to {self.maxval}")
        _check_seed(self)

    def _reach(self, dim: int) -> float:
        return max(abs(self.minval), abs(self.maxval))

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        fill_uniform(out, keys, seed, self.minval, self.maxval - self.minval)


@dataclass(frozen=True)
class RandomNormal(_Random):
    """Normal with this mean and standard deviation. No element is further out than 8.21 standard deviations."""

    kind: ClassVar[str] = "random_normal"

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_normal(self)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + NORMAL_REACH * self.stddev

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        fill_normal(out, keys, seed, self.mean, self.stddev, 1.0, NORMAL_REACH)


@dataclass(frozen=True)
class TruncatedNormal(_Random):
    """Normal conditioned on lying within two standard deviations, as in TensorFlow and Keras.

    stddev is that of the normal before it is cut; the elements' own is 0.8796 of it.
    """

    kind: ClassVar[str] = "truncated_normal"

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_normal(self)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + 2.0 * self.stddev

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        fill_normal(out, keys, seed, self.mean, self.stddev, TWO_SIGMA_MASS, 2.0)


@dataclass(frozen=True)
class GlorotUniform(_Random):
    """Uniform on [-limit, limit), limit = sqrt(3 / dim): Glorot and Bengio (AISTATS 2010) with both fans `dim`."""

    kind: ClassVar[str] = "glorot_uniform"

    seed: int | None = None

    def __post_init__(self) -> None:
        _check_seed(self)

    def _reach(self, dim: int) -> float:
        return math.sqrt(3.0 / dim)

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        limit = self._reach(out.shape[1])
        fill_uniform(out, keys, seed, -limit, 2.0 * limit)


_KINDS: dict[str, type[Initializer]] = {
    kind.kind: kind
    for kind in (Zeros, Ones, Constant, Row, RandomUniform, RandomNormal, TruncatedNormal, GlorotUniform)
}

# The same by TensorFlow's lower-case names.
zeros, ones, constant = Zeros, Ones, Constant
uniform, normal, truncated_normal, glorot_uniform = RandomUniform, RandomNormal, TruncatedNormal, GlorotUniform


def as_initializer(spec: Any, dim: int, dtype: npt.DTypeLike) -> Initializer:
    """Return the initializer of an `initializer` argument, checked against the rows it is to fill.

    spec: None (zeros), a real number (a constant), a list, tuple or array of shape (dim,) (a default row), or an
    Initializer.
    Raises ValueError for another shape or values that do not fit dtype; TypeError for anything else.
    """
    if spec is None:
        found: Initializer = Zeros()
    elif isinstance(spec, Initializer):
        found = spec
    elif isinstance(spec, (list, tuple)) or (isinstance(spec, np.ndarray) and spec.ndim):
        found = _row(spec, dim)
    elif is_number(spec) or isinstance(spec, (np.ndarray, np.generic)):
        found = Constant(spec[()] if isinstance(spec, np.ndarray) else spec)  # type: ignore[arg-type]
    else:
        raise TypeError(
            f"initializer must be None, a number, an array of {dim} numbers or an Initializer, "
            f"got {type(spec).__name__} {spec!r}; see kvemb.initializers"
        )
    found.check(dim, dtype)
    return found


def _row(spec: Any, dim: int) -> Row:
    try:
        shape: object = np.shape(spec)
    except ValueError:
        shape = "a ragged list"
    if shape != (dim,):
        raise ValueError(f"initializer must have shape (dim,) = ({dim},), got {shape}; give one number a column")
    return Row(spec)


def initializer_from_json(data: Mapping[str, Any]) -> Initializer:
    """Return the initializer that to_json() gave. Raises UnsupportedFormat for a kind or a field it does not know."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    found = _KINDS.get(kind) if isinstance(kind, str) else None
    if found is None:
        kinds = ", ".join(_KINDS)
        raise UnsupportedFormat(f"initializer must be of kind {kinds}, got {brief(data)}; use the kvemb that wrote it")
    try:
        made = found(**{name: from_plain(value) for name, value in data.items() if name != "kind"})
        if isinstance(made, _Random) and made.seed is None:
            raise ValueError("it has no seed")
        return made
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"initializer {brief(data)} cannot be read: {error}") from error


def _set(target: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(target, name, value)


def _check_seed(target: _Random) -> None:
    what, seed = f"{type(target).__name__} seed", target.seed
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral | None):
        raise TypeError(f"{what} must be an int or None, got {type(seed).__name__} {brief(seed)}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"{what} must be from 0 to 2**64 - 1, got {brief(seed)}")
    _set(target, "seed", None if seed is None else int(seed))


def _check_normal(target: RandomNormal | TruncatedNormal) -> None:
    check_finite(target, "mean", "stddev")
    if target.stddev < 0:
        raise ValueError(f"{type(target).__name__} stddev must be at least 0, got {target.stddev}")
    _check_seed(target)
