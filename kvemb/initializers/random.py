"""Initializers that draw a row for each key, by hashing it. Frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_float, as_int
from kvemb.initializers.base import Keys, Random, Rows

TWO_SIGMA_MASS = 0.9544997361036416  # P(|z| <= 2) of a standard normal
MAX_SEED = 2**64 - 1
NORMAL_REACH = 8.3  # no 52-bit uniform maps farther than 8.21 standard deviations


@cache
def _kernels() -> ModuleType:
    # Loaded when the first row is drawn: numba takes half a second. Cached as in kvemb.rows.hashing.
    from kvemb.rows import random_kernels

    return random_kernels


def _tails(out: Rows) -> Rows:
    """Return the scratch of fill_normal."""
    return np.empty(out.shape[1], np.int64)


@dataclass(frozen=True)
class RandomUniform(Random):
    """Uniform on the interval from minval to maxval; rounding to the dtype may give maxval itself.

    Args:
        minval: The lower end of the interval. Default: -0.05.
        maxval: The upper end of the interval, at least minval. Default: 0.05.
        seed: An int from 0 to 2**64 - 1. None: it is derived from the variable's name. Default: None.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: minval is above maxval, a number or the interval's length is not finite, or seed is out of range.
    """

    kind = "random_uniform"

    minval: float = accepts(as_float, -0.05)
    maxval: float = accepts(as_float, 0.05)
    seed: int | None = accepts(as_int, None, least=0, most=MAX_SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minval > self.maxval:
            raise ValueError(f"RandomUniform minval must be at most maxval, got {self.minval} > {self.maxval}")
        if not math.isfinite(self.maxval - self.minval):
            raise ValueError(f"RandomUniform maxval - minval must be finite, got {self.minval} to {self.maxval}")

    def _reach(self, dim: int) -> float:
        return max(abs(self.minval), abs(self.maxval))

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        _kernels().fill_uniform(out, keys, seed, self.minval, self.maxval - self.minval)


@dataclass(frozen=True)
class RandomNormal(Random):
    """Normal with this mean and standard deviation.

    No element is more than 8.21 standard deviations from the mean.

    Args:
        mean: The mean. Default: 0.0.
        stddev: The standard deviation, at least 0. Default: 0.05.
        seed: An int from 0 to 2**64 - 1. None: it is derived from the variable's name. Default: None.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: stddev is negative, a number is not finite, or seed is out of range.
    """

    kind = "random_normal"

    mean: float = accepts(as_float, 0.0)
    stddev: float = accepts(as_float, 0.05, least=0)
    seed: int | None = accepts(as_int, None, least=0, most=MAX_SEED)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + NORMAL_REACH * self.stddev

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        _kernels().fill_normal(out, keys, seed, self.mean, self.stddev, 1.0, NORMAL_REACH, _tails(out))


@dataclass(frozen=True)
class TruncatedNormal(Random):
    """Normal conditioned on lying within two standard deviations of the mean, as in TensorFlow and Keras.

    Args:
        mean: The mean. Default: 0.0.
        stddev: The standard deviation of the normal before truncation, at least 0. The elements' standard deviation is
            0.8796 of it. Default: 0.05.
        seed: An int from 0 to 2**64 - 1. None: it is derived from the variable's name. Default: None.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: stddev is negative, a number is not finite, or seed is out of range.
    """

    kind = "truncated_normal"

    mean: float = accepts(as_float, 0.0)
    stddev: float = accepts(as_float, 0.05, least=0)
    seed: int | None = accepts(as_int, None, least=0, most=MAX_SEED)

    def _reach(self, dim: int) -> float:
        return abs(self.mean) + 2.0 * self.stddev

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        _kernels().fill_normal(out, keys, seed, self.mean, self.stddev, TWO_SIGMA_MASS, 2.0, _tails(out))


@dataclass(frozen=True)
class GlorotUniform(Random):
    """Uniform on the interval from -limit to limit, where limit = sqrt(3 / dim).

    This is Glorot and Bengio's (AISTATS 2010), with both fans `dim`.

    Args:
        seed: An int from 0 to 2**64 - 1. None: it is derived from the variable's name. Default: None.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: seed is out of range.
    """

    kind = "glorot_uniform"

    seed: int | None = accepts(as_int, None, least=0, most=MAX_SEED)

    def _reach(self, dim: int) -> float:
        return math.sqrt(3.0 / dim)

    def _fill(self, out: Rows, keys: Keys, seed: np.uint64) -> None:
        limit = self._reach(out.shape[1])
        _kernels().fill_uniform(out, keys, seed, -limit, 2.0 * limit)
