"""Draws: quantiles and logarithms against the standard library, and machine code that gives the same everywhere."""

from __future__ import annotations

import math
import re
import statistics

import numba
import numpy as np
import pytest

from kvemb.rows import random_kernels


@pytest.mark.parametrize("r", [2.0**-53, 1e-15, math.exp(-25), 1e-10, 1e-4, 0.0227, 0.05, 0.0749])
def test_tail_quantiles_reach_the_ends_of_the_distribution(r):
    # The lower tail keeps r exact in the oracle; the upper one is its mirror image.
    got = random_kernels.tail_quantile(-(0.5 - r))
    assert got == pytest.approx(statistics.NormalDist().inv_cdf(0.5 - (0.5 - r)), rel=1e-14)
    assert random_kernels.tail_quantile(0.5 - r) == -got


def test_the_logarithm_is_exact_to_two_units():
    for x in [2.0**-53, math.sqrt(0.5), 1.0, math.sqrt(2.0), *np.random.default_rng(0).random(2000)]:
        assert random_kernels.log(x) == pytest.approx(math.log(x), rel=4.5e-16, abs=0)


@pytest.mark.parametrize("fill", [random_kernels.fill_uniform, random_kernels.fill_normal], ids=["uniform", "normal"])
def test_no_multiply_add_is_fused(fill):
    # Compiled anew: a kernel that came from the cache has no listing.
    fresh = numba.njit(nogil=True, error_model="numpy")(fill.py_func)
    scales = (1.0, 1.0) if fill is random_kernels.fill_uniform else (1.0, 1.0, 1.0, 8.3, np.empty(2, np.int64))
    fresh(np.empty((2, 2), np.float32), np.array([0, 1]), np.uint64(0), *scales)
    (listing,) = fresh.inspect_asm().values()
    assert not re.search(r"\bv?fn?m(add|sub|la|ls)", listing)
