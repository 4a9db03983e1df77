"""The functions that formulas call, in NumPy; kernels have their own versions, which give the same bits.

A formula may use only + - * / and these functions, because others may give different results on another machine.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# A number in a formula; an array (n,) of them when NumPy runs the formula on many rows at once.
Number = Any
# Values, float64 (m,), of a function of the step count that has no closed form.
Table = npt.NDArray[np.float64]
# The number of partial sums of sum_of_squares.
LANES = 16
# ln 2 in two parts: k times the first is exact for every exponent k of a float64 (fdlibm, e_log.c).
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LOG_TERMS, EXP_TERMS = 12, 16


class Count(Protocol):
    """The step count that bias correction uses, this step included: the row's own, or the variable's."""

    def __add__(self, more: int) -> Number:
        """Return the count after `more` further steps."""


class Elements(Protocol):
    """The embedding, the gradient or a slot of one row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the calculation."""

    def __getitem__(self, j: int) -> Number:
        """Return an element."""

    def __setitem__(self, j: int, value: Number) -> None:
        """Set an element."""


def sqrt(value: Number) -> Number:
    """Return the correctly rounded square root, in the dtype of value."""
    return np.sqrt(value)


def absolute(value: Number) -> Number:
    """Return the value without its sign."""
    return np.abs(value)


def larger(a: Number, b: Number) -> Number:
    """Return a if a > b, else b: so b if one of them is NaN."""
    return np.where(a > b, a, b)


def smaller(a: Number, b: Number) -> Number:
    """Return a if a < b, else b: so b if one of them is NaN."""
    return np.where(a < b, a, b)


def where_positive(value: Number, yes: Number, no: Number) -> Number:
    """Return yes where value > 0, else no. Both are calculated."""
    return np.where(value > 0, yes, no)


def rounded(value: Number, like: Elements) -> Number:
    """Round a float64 to the dtype of a row's elements."""
    return like.dtype.type(value)


def sum_of_squares(row: Any) -> Number:
    """Return the sum of the squares of a row's first dim elements, in float64.

    There are 16 partial sums: of every 16 elements, the first is added to the first sum, the second to the second, and
    so on. Then each of the last 8 sums is added to its partner among the first 8, and so on; the remaining elements are
    added last, in order.
    """
    wide = row.array.astype(np.float64)
    squares = wide * wide
    whole = squares.shape[1] // LANES * LANES
    sums = np.zeros((len(squares), LANES))
    for start in range(0, whole, LANES):
        sums = sums + squares[:, start : start + LANES]
    while (half := sums.shape[1] // 2) > 0:
        sums = sums[:, :half] + sums[:, half:]
    total = sums[:, 0]
    for j in range(whole, squares.shape[1]):
        total = total + squares[:, j]
    return total


def entry(table: Table, index: Number) -> Number:
    """Return the number at an index: the last one if it is too large, the first one if it is below 0 or NaN."""
    return table[np.minimum(np.where(np.asarray(index) >= 0, index, 0), len(table) - 1).astype(np.int64)]


def power(base: float, exponent: Number) -> Number:
    """Return base ** exponent in float64 for a whole exponent of at least 0; 1 for a negative exponent or NaN.

    Uses repeated squaring, which only multiplies, because the power functions of libraries differ in the last bits. The
    error relative to 1 - base ** exponent is below 1e-10 for exponents up to 2 ** 24 and bases up to 1 - 1e-6.
    """
    left = np.minimum(np.where(np.asarray(exponent) >= 1, exponent, 0), 2.0**62).astype(np.int64)
    result, square = np.ones(left.shape), np.float64(base)
    while left.any():
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    return result


def root_power(base: Number, exponent: float) -> Number:
    """Return base ** exponent in float64, for a base and an exponent of at least 0; 0 ** 0 is 1, a negative base NaN.

    Calculated as exp(exponent * log(base)), with series for both, for the reason given in power(). The relative error
    is about 4e-16 times the larger of 1 and the logarithm of the result.
    """
    wide = np.asarray(base, np.float64)
    with np.errstate(all="ignore"):
        fraction, bits = np.frexp(wide)
        low = fraction < 0.7071067811865476
        fraction, bits = np.where(low, fraction * 2.0, fraction), np.where(low, bits - 1, bits)
        s = (fraction - 1.0) / (fraction + 1.0)
        square, series = s * s, np.zeros_like(wide)
        for k in range(LOG_TERMS, -1, -1):
            series = series * square + 1.0 / (2 * k + 1)
        log = bits * LN2_HIGH + (bits * LN2_LOW + 2.0 * s * series)
        y = exponent * log
        doublings = np.maximum(np.minimum(np.floor(y * 1.4426950408889634 + 0.5), 5000.0), -5000.0)
        x = (y - doublings * LN2_HIGH) - doublings * LN2_LOW
        result = np.ones_like(wide)
        for k in range(EXP_TERMS, 0, -1):
            result = result * x / k + 1.0
        result = np.ldexp(result, np.where(np.isnan(doublings), 0.0, doublings).astype(np.int64))
    odd = np.where(wide > 0, wide, np.where(wide == 0, 0.0, np.nan))
    result = np.where((wide > 0) & (wide < np.inf), result, odd)
    return np.where(np.equal(exponent, 0), 1.0, result)
