"""The rows that missing keys read: each a pure function of (seed, key, column).

The same on every machine, in every batch, shard and order, forever: elements come from an integer hash and from IEEE
`+ - * /` and `sqrt` in float64 alone, then are rounded to the dtype once (bfloat16 through float32, as ml_dtypes does).
Initializers are frozen values; any thread may use them. What a kind gives is part of the format: a better algorithm
gets a new kind.
"""

from __future__ import annotations

import abc
import math
import numbers
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numba
import numpy as np
import numpy.typing as npt

from kvemb.errors import UnsupportedFormat

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
Number = int | float

# The golden ratio times 2**64: the step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). On disk; do not change.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S12 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11), np.uint64(12)
_TWO_SIGMA_MASS = 0.9544997361036416  # P(|z| <= 2) of a standard normal
_LN2 = 0.6931471805599453
_NORMAL_REACH = 8.3  # no 52-bit uniform maps further out than 8.21 standard deviations


def _kernel(function: Any) -> Any:
    """Compile once and keep it on disk. No fastmath, so that no multiply-add is fused: every machine gives the same."""
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _mix(h: Any) -> Any:
    """SplitMix64's finaliser: a bijection of uint64."""
    h = (h ^ (h >> _S30)) * _MULTIPLY_1
    h = (h ^ (h >> _S27)) * _MULTIPLY_2
    return h ^ (h >> _S31)


@_kernel
def _log(x: float) -> Any:
    """Return ln(x) of a normal x > 0, by 2 artanh((m - 1) / (m + 1)); error below 2 ulp, and no libm."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52  # counted from sqrt(1/2), so that mantissas lie about 1
    mantissa = np.int64(bits - (exponent << 52)).view(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    tail = 1.0 / 19.0 + z * (1.0 / 21.0)
    tail = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * tail)))
    tail = z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * tail))))
    return exponent * _LN2 + (2.0 * s + 2.0 * s * tail)


# Numerators and denominators of AS 241, highest power first: the centre, the tails, the far tails.
_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR_TAIL = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _ratio(polynomials: Any, x: float) -> Any:
    above, below = polynomials
    n, d = above[0], below[0]
    for k in range(1, 8):
        n = n * x + above[k]
        d = d * x + below[k]
    return n / d


@_kernel
def _central_quantile(q: float) -> Any:
    """Return z with Phi(z) = q + 1/2, |q| <= 0.425: PPND16 of AS 241 (Wichura, Appl. Statist. 37, 1988, 477-484)."""
    return q * _ratio(_CENTRE, 0.180625 - q * q)


@_kernel
def _tail_quantile(q: float) -> Any:
    """The same for 0.425 < |q| < 1/2."""
    r = math.sqrt(-_log(0.5 - abs(q)))
    z = _ratio(_TAIL, r - 1.6) if r <= 5.0 else _ratio(_FAR_TAIL, r - 5.0)
    return -z if q < 0.0 else z


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _draw(state: Any) -> Any:
    """Return an odd multiple of 2**-53 in (-1/2, 1/2): exact, symmetric about 0, and never at either end."""
    return (np.float64(_mix(state) >> _S12) + 0.5) * 2.220446049250313e-16 - 0.5


@numba.njit(inline="always")  # type: ignore[untyped-decorator,unused-ignore]
def _row_state(seed: Any, key: int) -> Any:
    """Return the state that a row's columns step from. Mixed twice, so that near keys share no run of columns."""
    start = _mix(seed + _STEP)
    return _mix(_mix(start ^ np.uint64(key)) + start)


@_kernel
def _fill_uniform(out: Any, keys: Any, seed: Any, minval: float, width: float) -> None:
    """Write uniform draws from [minval, minval + width) to out (n, dim), float32 or float64, a row per key."""
    for i in range(len(keys)):
        state = _row_state(seed, keys[i])
        for j in range(out.shape[1]):
            state += _STEP
            out[i, j] = minval + width * (np.float64(_mix(state) >> _S11) * 1.1102230246251565e-16)


@_kernel
def _fill_normal(out: Any, keys: Any, seed: Any, mean: float, stddev: float, mass: float, cut: float) -> None:
    """Write normal draws, conditioned on the central probability `mass` (|z| <= cut), to out as _fill_uniform does.

    Three passes over a row: the first two have no branch to mispredict; the third mends the 15% in the tails.
    """
    tails = np.empty(out.shape[1], np.int64)
    for i in range(len(keys)):
        first = _row_state(seed, keys[i])
        state = first
        for j in range(out.shape[1]):
            state += _STEP
            out[i, j] = mean + stddev * _central_quantile(_draw(state) * mass)
        state, found = first, 0
        for j in range(out.shape[1]):
            state += _STEP
            tails[found] = j
            found += abs(_draw(state) * mass) > 0.425
        for k in range(found):
            j = tails[k]
            q = _draw(first + _STEP * np.uint64(j + 1)) * mass
            out[i, j] = mean + stddev * min(max(_tail_quantile(q), -cut), cut)


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
        return {"kind": self.kind, **{name: _to_plain(value) for name, value in values.items()}}


class _Fixed(Initializer):
    """A row that is the same for every key."""

    @abc.abstractmethod
    def _values(self, dim: int) -> Sequence[Number]:
        """Return one value for all columns, or `dim` of them; ValueError if they are another number."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Raise ValueError unless every value fits dtype: an integer dtype exactly, a float dtype without overflow."""
        dtype = np.dtype(dtype)
        for value in self._values(dim):
            if not _fits(value, dtype):
                raise ValueError(f"initializer must fit {dtype.name}, got {value!r}; change it or the value_dtype")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return a fresh (n, dim) array of dtype, every row the same."""
        dtype = np.dtype(dtype)
        values = self._values(dim)
        # Integers go to integers directly: float64 would lose those beyond 2**53.
        row = np.array([int(v) for v in values]) if _is_integer(dtype) else np.array([float(v) for v in values])
        out = np.empty((len(keys), dim), dtype)
        out[:] = _rounded(row, dtype)
        return out


class _Random(Initializer):
    """A row drawn by hashing (seed, key, column). Integer dtypes are refused."""

    seed: int

    @abc.abstractmethod
    def _reach(self, dim: int) -> float:
        """Return the largest magnitude an element can have."""

    @abc.abstractmethod
    def _fill(self, out: Rows, keys: Keys) -> None:
        """Write rows of float32 or float64 to out (n, dim)."""

    def check(self, dim: int, dtype: npt.DTypeLike) -> None:
        """Raise TypeError for an integer dtype, ValueError where an element could overflow dtype."""
        dtype = np.dtype(dtype)
        if _is_integer(dtype):
            raise TypeError(
                f"initializer of {dtype.name} values must be a constant, got {self!r}; "
                "give a number or an array of dim values, or use a float value_dtype"
            )
        reach = self._reach(dim)
        if not _fits(reach, dtype):
            raise ValueError(f"initializer must fit {dtype.name}, got {self!r}, which reaches {reach:g}; narrow it")

    def rows(self, keys: Keys, dim: int, dtype: npt.DTypeLike) -> Rows:
        """Return a fresh (n, dim) array of dtype, each row a function of (seed, key) alone."""
        dtype = np.dtype(dtype)
        drawn = np.empty((len(keys), dim), dtype if dtype == np.float32 else np.float64)
        self._fill(drawn, np.ascontiguousarray(keys, np.int64))
        return _rounded(drawn, dtype)


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
        _set(self, "value", _number(self.value, "Constant value"))

    def _values(self, dim: int) -> Sequence[Number]:
        return (self.value,)


@dataclass(frozen=True)
class Row(_Fixed):
    """A default row: one value for each column, from a tuple, list or one-dimensional array of `dim` real numbers."""

    kind: ClassVar[str] = "row"

    values: tuple[Number, ...]

    def __post_init__(self) -> None:
        if isinstance(self.values, (str, bytes)) or not isinstance(self.values, (tuple, list, np.ndarray)):
            raise TypeError(f"Row values must be a sequence of numbers, got {self.values!r}")
        if isinstance(self.values, np.ndarray) and self.values.ndim != 1:
            raise ValueError(f"Row values must have one dimension, got shape {self.values.shape}; reshape to (dim,)")
        if not len(self.values):
            raise ValueError("Row values must hold one value for each column, got none")
        _set(self, "values", tuple(_number(value, "Row values") for value in self.values))

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
    seed: int = 0

    def __post_init__(self) -> None:
        _check_finite(self, "minval", "maxval")
        if self.minval > self.maxval:
            raise ValueError(f"RandomUniform minval must be at most maxval, got {self.minval} > {self.maxval}")
        if not math.isfinite(self.maxval - self.minval):
            raise ValueError(f"RandomUniform maxval - minval must be finite, got {self.minval} to {self.maxval}")
        _check_seed(self)

    def _reach(self, dim: int) -> float:
        return max(abs(self.minval), abs(self.maxval))

    def _fill(self, out: Rows, keys: Keys) -> None:
        _fill_uniform(out, keys, np.uint64(self.seed), self.minval, self.maxval - self.minval)


@dataclass(frozen=True)
class RandomNormal(_Random):
    """Normal with this mean and standard deviation. No element is further out than 8.21 standard deviations."""

    kind: ClassVar[str] = "random_normal"

    mean: float = 0.0
    stddev: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check_normal(self)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + _NORMAL_REACH * self.stddev

    def _fill(self, out: Rows, keys: Keys) -> None:
        _fill_normal(out, keys, np.uint64(self.seed), self.mean, self.stddev, 1.0, _NORMAL_REACH)


@dataclass(frozen=True)
class TruncatedNormal(_Random):
    """Normal conditioned on lying within two standard deviations, as in TensorFlow and Keras.

    stddev is that of the normal before it is cut; the elements' own is 0.8796 of it.
    """

    kind: ClassVar[str] = "truncated_normal"

    mean: float = 0.0
    stddev: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check_normal(self)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + 2.0 * self.stddev

    def _fill(self, out: Rows, keys: Keys) -> None:
        _fill_normal(out, keys, np.uint64(self.seed), self.mean, self.stddev, _TWO_SIGMA_MASS, 2.0)


@dataclass(frozen=True)
class GlorotUniform(_Random):
    """Uniform on [-limit, limit), limit = sqrt(3 / dim): Glorot and Bengio (AISTATS 2010) with both fans `dim`."""

    kind: ClassVar[str] = "glorot_uniform"

    seed: int = 0

    def __post_init__(self) -> None:
        _check_seed(self)

    def _reach(self, dim: int) -> float:
        return math.sqrt(3.0 / dim)

    def _fill(self, out: Rows, keys: Keys) -> None:
        limit = self._reach(out.shape[1])
        _fill_uniform(out, keys, np.uint64(self.seed), -limit, 2.0 * limit)


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
    elif _is_number(spec) or isinstance(spec, (np.ndarray, np.generic)):
        value: Any = spec[()] if isinstance(spec, np.ndarray) else spec
        found = Constant(value)
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
        raise UnsupportedFormat(f"initializer must be of kind {kinds}, got {data!r}; use the kvemb that wrote it")
    try:
        return found(**{name: _from_plain(value) for name, value in data.items() if name != "kind"})
    except (TypeError, ValueError) as error:
        raise UnsupportedFormat(f"initializer {data!r} cannot be read: {error}") from error


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_plain(element) for element in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan:" + struct.pack(">d", value).hex()  # sign and payload too
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(element) for element in value)
    if isinstance(value, str) and value.startswith("nan:") and len(value) == 20:
        return struct.unpack(">d", bytes.fromhex(value[4:]))[0]
    if value in ("inf", "-inf"):
        return float(value)
    return value


def _set(target: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass while it is made."""
    object.__setattr__(target, name, value)


def _is_number(value: Any) -> bool:
    """Say whether value is a real number, NumPy's and ml_dtypes' scalars included; a bool is none."""
    if isinstance(value, np.generic):
        return value.dtype.kind in "iuf" or value.dtype.name == "bfloat16"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(value: Any, what: str) -> Number:
    if not _is_number(value):
        raise TypeError(f"{what} must be a real number, got {type(value).__name__} {value!r}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _check_finite(target: object, *names: str) -> None:
    for name in names:
        what = f"{type(target).__name__} {name}"
        given = _number(getattr(target, name), what)
        try:
            value = float(given)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise ValueError(f"{what} must be a finite float64, got {given}")
        _set(target, name, value)


def _check_seed(target: _Random) -> None:
    what, seed = f"{type(target).__name__} seed", target.seed
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {type(seed).__name__} {seed!r}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"{what} must be from 0 to 2**64 - 1, got {seed}")
    _set(target, "seed", int(seed))


def _check_normal(target: RandomNormal | TruncatedNormal) -> None:
    _check_finite(target, "mean", "stddev")
    if target.stddev < 0:
        raise ValueError(f"{type(target).__name__} stddev must be at least 0, got {target.stddev}")
    _check_seed(target)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def _fits(value: Number, dtype: np.dtype[Any]) -> bool:
    if _is_integer(dtype):
        limits = np.iinfo(dtype)
        return math.isfinite(value) and value == int(value) and limits.min <= int(value) <= limits.max
    if isinstance(value, float) and not math.isfinite(value):
        return True
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(_rounded(np.array([float(value)]), dtype).astype(np.float64))[0])
    except OverflowError:
        return False


def _rounded(values: Rows, dtype: np.dtype[Any]) -> Rows:
    """Round float64 to dtype; bfloat16 by way of float32, which is what ml_dtypes does and does not promise."""
    if dtype.name == "bfloat16":
        values = values.astype(np.float32)
    return values.astype(dtype, copy=False)
