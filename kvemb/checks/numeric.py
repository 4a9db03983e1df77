"""Real numbers as arguments and in JSON: what counts as one, whether a dtype holds it, and its bits. Pure functions."""

from __future__ import annotations

import math
import numbers
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief

Number = int | float


def is_number(value: Any) -> bool:
    """Say whether value is a real number, NumPy's and ml_dtypes' scalars included; a bool is none."""
    if isinstance(value, np.generic):
        return value.dtype.kind in "iuf" or value.dtype.name == "bfloat16"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_number(value: Any, what: str) -> Number:
    """Return a Python int or float equal to value. Raises TypeError, naming `what`, where it is no real number."""
    if not is_number(value):
        raise TypeError(f"{what} must be a real number, got {type(value).__name__} {brief(value)}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def as_int(value: Any, what: str, least: int, most: int | None = None) -> int:
    """Return value as a Python int from least to most. Raises TypeError or ValueError, naming `what`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {brief(value)}")
    number = int(value)
    if number < least:
        raise ValueError(f"{what} must be at least {least}, got {brief(number)}")
    if most is not None and number > most:
        raise ValueError(f"{what} must be at most {most}, got {brief(number)}")
    return number


def check_finite(target: object, *names: str) -> None:
    """Make fields of a frozen dataclass, while it is made, finite floats. Raises TypeError or ValueError."""
    for name in names:
        what = f"{type(target).__name__} {name}"
        given = as_number(getattr(target, name), what)
        try:
            value = float(given)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise ValueError(f"{what} must be a finite float64, got {brief(given)}")
        object.__setattr__(target, name, value)


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Say whether values of dtype are integers."""
    return dtype.kind in "iu"


def fits(value: Number, dtype: np.dtype[Any]) -> bool:
    """Say whether dtype holds value: an integer dtype exactly, a float dtype without overflow."""
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        whole = isinstance(value, int) or value.is_integer()  # of infinities and NaN it says no
        return whole and limits.min <= int(value) <= limits.max
    if isinstance(value, float) and not math.isfinite(value):
        return True
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(rounded(np.array([float(value)]), dtype).astype(np.float64))[0])
    except OverflowError:
        return False


def rounded(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Round float64 to dtype; bfloat16 by way of float32, which is what ml_dtypes does and does not promise."""
    if dtype.name == "bfloat16":
        values = values.astype(np.float32)
    return values.astype(dtype, copy=False)


def to_plain(value: Any) -> Any:
    """Return a number, or a tuple of them, as JSON that keeps every bit; floats that are not finite become text."""
    if isinstance(value, tuple):
        return [to_plain(element) for element in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan:" + struct.pack(">d", value).hex()  # sign and payload too
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def from_plain(value: Any) -> Any:
    """Return what to_plain was given."""
    if isinstance(value, list):
        return tuple(from_plain(element) for element in value)
    if isinstance(value, str) and value.startswith("nan:") and len(value) == 20:
        return struct.unpack(">d", bytes.fromhex(value[4:]))[0]
    if value in ("inf", "-inf"):
        return float(value)
    return value
