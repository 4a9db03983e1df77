"""Numbers and words in arguments and in JSON: type checks, ranges, and lossless conversion. Pure functions."""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief

Number = int | float


def is_number(value: Any) -> bool:
    """Whether value is a real number: Python's, or a scalar of NumPy or ml_dtypes. A bool is not."""
    if isinstance(value, np.generic):
        return value.dtype.kind in "iuf" or value.dtype.name == "bfloat16"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_number(value: Any, what: str) -> Number:
    """Return a Python int or float equal to value.

    Raises, naming `what`, TypeError if it is not a real number, ValueError if it exceeds float64.
    """
    if not is_number(value):
        raise TypeError(f"{what} must be a real number, got {type(value).__name__} {brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} must fit float64, as a finite number, got {brief(value)}") from None
    return int(value) if isinstance(value, numbers.Integral) else number


def as_int(value: Any, what: str, least: int | None = None, most: int | None = None) -> int:
    """Return value as a Python int from least to most. Raises TypeError or ValueError, naming `what`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{what} must be an int, got {brief(value)}")
    number = int(value)
    if least is not None and number < least:
        raise ValueError(f"{what} must be at least {least}, got {brief(number)}")
    if most is not None and number > most:
        raise ValueError(f"{what} must be at most {most}, got {brief(number)}")
    return number


def as_float(
    value: Any,
    what: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    hint: str = "",
) -> float:
    """Return value as a finite float within its limits. hint: the end of each message.

    Raises, naming `what`, TypeError if it is not a real number, ValueError if it is not finite or out of its limits.
    """
    end = hint and f"; {hint}"
    if not is_number(value):
        raise TypeError(f"{what} must be a number, got {type(value).__name__} {brief(value)}{end}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    limits = [
        ("at least", least, least is None or number >= least),
        ("above", above, above is None or number > above),
        ("at most", most, most is None or number <= most),
    ]
    if not (math.isfinite(number) and all(kept for _, _, kept in limits)):
        wanted = " and ".join(["finite", *(f"{how} {limit}" for how, limit, _ in limits if limit is not None)])
        raise ValueError(f"{what} must be {wanted}, got {brief(value)}{end}")
    return number


def as_bool(value: Any, what: str) -> bool:
    """Return value as a Python bool. Raises TypeError, naming `what`, for anything else, also 0 and 1."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what} must be True or False, got {type(value).__name__} {brief(value)}")
    return bool(value)


def as_choice(value: Any, what: str, *, among: Sequence[str]) -> str:
    """Return value if it is one of these words. Raises ValueError, naming `what`, for anything else."""
    if not (isinstance(value, str) and value in among):
        raise ValueError(f"{what} must be {' or '.join(map(repr, among))}, got {brief(value)}")
    return value


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether dtype is an integer dtype."""
    return dtype.kind in "iu"


def fits(value: Number, dtype: np.dtype[Any]) -> bool:
    """Whether dtype can hold value: an integer dtype exactly, a float dtype without overflow."""
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        whole = isinstance(value, int) or value.is_integer()  # False for infinities and NaN
        return whole and limits.min <= int(value) <= limits.max
    if isinstance(value, float) and not math.isfinite(value):
        return True
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(rounded(np.array([float(value)]), dtype).astype(np.float64))[0])
    except OverflowError:
        return False


def rounded(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Round float64 to dtype. bfloat16 is rounded through float32, as ml_dtypes does but does not document."""
    if dtype.name == "bfloat16":
        values = values.astype(np.float32)
    return values.astype(dtype, copy=False)


def to_plain(value: Any) -> Any:
    """Return a number, or a tuple of numbers, as JSON that keeps every bit; non-finite floats become strings."""
    if isinstance(value, tuple):
        return [to_plain(element) for element in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan:" + struct.pack(">d", value).hex()  # sign and payload too
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def from_plain(value: Any) -> Any:
    """Return the number or tuple that to_plain converted."""
    if isinstance(value, list):
        return tuple(from_plain(element) for element in value)
    if isinstance(value, str) and value.startswith("nan:") and len(value) == 20:
        return struct.unpack(">d", bytes.fromhex(value[4:]))[0]
    if value in ("inf", "-inf"):
        return float(value)
    return value
