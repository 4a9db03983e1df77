"""The functions that formulas call, as NumPy calculates them; kernels have their own, which give the same bits.

A formula may use + - * / and these, and nothing that two machines could calculate differently.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

# A number that a formula calculates with. Where NumPy runs it on many rows at once, an array (n,) of them.
Number = Any


class Elements(Protocol):
    """The embedding, the gradient or a slot of one row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that is calculated in."""

    def __getitem__(self, j: int) -> Number:
        """Return an element."""

    def __setitem__(self, j: int, value: Number) -> None:
        """Set an element."""


def sqrt(value: Number) -> Number:
    """Return the square root, correctly rounded, in the value's own dtype."""
    return np.sqrt(value)


def rounded(value: Number, like: Elements) -> Number:
    """Return a number in the dtype of a row's elements, which float64 is rounded to."""
    return like.dtype.type(value)


def power(base: float, exponent: Number) -> Number:
    """Return base ** exponent in float64, for a whole number that is at least 0; below it, and for NaN, 1.

    By repeated squaring, which only multiplies: the power functions of systems' libraries differ in the last bits. The
    error relative to 1 - base ** exponent is below 1e-10 for exponents up to 2 ** 24 and bases up to 1 - 1e-6.
    """
    left = np.minimum(np.where(np.asarray(exponent) >= 1, exponent, 0), 2.0**62).astype(np.int64)
    result, square = np.ones(left.shape), np.float64(base)
    while left.any():
        result = np.where(left & 1, result * square, result)
        square, left = square * square, left >> 1
    return result
