"""What formulas call, compiled, has the bits of NumPy."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from kvemb.backends import cpu_arithmetic
from kvemb.optimizers import arithmetic


class Columns:
    """One row, as arithmetic sees many."""

    def __init__(self, row):
        self.array = row[None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_squares_have_the_bits_of_numpy(dtype):
    total = numba.njit(lambda row, dim: cpu_arithmetic.sum_of_squares(row, dim))
    row = np.random.default_rng(0).normal(size=100).astype(dtype)
    for dim in (1, 2, 15, 16, 17, 31, 32, 64, 99, 100):
        assert total(row, dim) == arithmetic.sum_of_squares(Columns(row[:dim]))[0]


def test_powers_of_any_exponent_have_the_bits_of_numpy():
    powered = numba.njit(error_model="numpy")(lambda base, exponent: cpu_arithmetic.root_power(base, exponent))
    chance = np.random.default_rng(0)
    bases = np.r_[np.exp(chance.normal(size=300) * 100), 0.0, 5e-324, np.inf, np.nan, -1.0]
    for exponent in (0.0, 0.3, 0.5, 1.0, 50.0):
        expected = arithmetic.root_power(bases, exponent)
        np.testing.assert_array_equal([powered(base, exponent) for base in bases], expected)


def test_entries_of_tables_are_those_of_numpy():
    chosen = numba.njit(lambda table, index: cpu_arithmetic.entry(table, index))
    table = np.array([1.0, 2.0, 3.0])
    for index in (-1.0, 0.0, 1.0, 2.0, 3.0, 1e30, np.nan):
        assert chosen(table, index) == arithmetic.entry(table, index)
