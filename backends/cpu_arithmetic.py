"""The functions that formulas call, compiled: those of kvemb.optimizers.arithmetic, with the same bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import overload

from kvemb.backends.intrinsics import sum_of_blocks
from kvemb.kernels.compiling import compiled
from kvemb.optimizers.arithmetic import EXP_TERMS, LANES, LN2_HIGH, LN2_LOW, LOG_TERMS


@compiled
def sqrt(value: Any) -> Any:
    """See arithmetic."""
    return np.sqrt(value)


@compiled
def absolute(value: Any) -> Any:
    """See arithmetic."""
    return np.abs(value)


@compiled
def larger(a: Any, b: Any) -> Any:
    """See arithmetic."""
    return a if a > b else b


@compiled
def smaller(a: Any, b: Any) -> Any:
    """See arithmetic."""
    return a if a < b else b


@compiled
def where_positive(value: Any, yes: Any, no: Any) -> Any:
    """See arithmetic."""
    return yes if value > 0 else no


def rounded(value: Any, like: Any) -> Any:
    """See arithmetic."""
    raise TypeError("rounded is compiled, not called")


@overload(rounded)
def _rounded(value: Any, like: Any) -> Any:
    kind = np.dtype(like.dtype.name).type

    def converted(value: Any, like: Any) -> Any:
        return kind(value)

    return converted


@compiled
def entry(table: Any, index: Any) -> Any:
    """See arithmetic."""
    last = np.float64(len(table) - 1)
    return table[np.int64(min(np.float64(index), last))] if index >= 0 else table[0]


@compiled
def sum_of_squares(row: Any, dim: int) -> Any:
    """Return arithmetic.sum_of_squares of a row's first dim elements."""
    whole = dim // LANES * LANES
    total = sum_of_blocks(row, whole)
    for j in range(whole, dim):
        element = np.float64(row[j])
        total = total + element * element
    return total


@compiled
def power(base: Any, exponent: Any) -> Any:
    """See arithmetic."""
    left: Any = np.int64(min(np.float64(exponent), 2.0**62)) if exponent >= 1 else np.int64(0)
    result, square = 1.0, base
    while left > 0:
        if left & 1:
            result *= square
        square *= square
        left >>= 1
    return result


@compiled
def root_power(base: Any, exponent: Any) -> Any:
    """See arithmetic."""
    wide = np.float64(base)
    if exponent == 0:
        return 1.0
    if not (wide > 0 and wide < np.inf):
        return wide if wide > 0 else (0.0 if wide == 0 else np.nan)
    fraction, bits = math.frexp(wide)
    if fraction < 0.7071067811865476:
        fraction, bits = fraction * 2.0, bits - 1
    s = (fraction - 1.0) / (fraction + 1.0)
    square, series = s * s, 0.0
    for k in range(LOG_TERMS, -1, -1):
        series = series * square + 1.0 / np.float64(2 * k + 1)
    log = bits * LN2_HIGH + (bits * LN2_LOW + 2.0 * s * series)
    y = exponent * log
    doublings = max(min(math.floor(y * 1.4426950408889634 + 0.5), 5000.0), -5000.0)
    x = (y - doublings * LN2_HIGH) - doublings * LN2_LOW
    result = 1.0
    for k in range(EXP_TERMS, 0, -1):
        result = result * x / np.float64(k) + 1.0
    power_of_two: Any = np.int64(doublings)
    return math.ldexp(result, power_of_two)
