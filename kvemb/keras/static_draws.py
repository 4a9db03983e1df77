"""The rows that random initializers give to missing keys, as operations of the backend, for exported models.

The same arithmetic as kvemb/rows/random_kernels.py, on int64 (which wraps as uint64 does) and float64, so that float32
rows are the same bits. Pure functions.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from kvemb.initializers import GlorotUniform, Initializer, RandomNormal, RandomUniform, TruncatedNormal
from kvemb.initializers.random import NORMAL_REACH, TWO_SIGMA_MASS
from kvemb.rows import random_kernels

_WORD = 1 << 64
_STEP = int(random_kernels.STEP)
_MULTIPLIERS = int(random_kernels.MULTIPLY_1), int(random_kernels.MULTIPLY_2)


def draw_rows(initializer: Initializer, keys: Any, dim: int) -> Any:
    """Return the rows of keys as a tensor, float64 (n, dim). keys: a tensor, int64 (n,). Raises TypeError."""
    start = _mixed((int(getattr(initializer, "seed", 0)) + _STEP) % _WORD)
    rows = _mix(_mix(keys ^ _signed(start)) + _signed(start))
    columns = np.array([_signed(_STEP * (column + 1)) for column in range(dim)])
    drawn = _mix(keras.ops.expand_dims(rows, 1) + keras.ops.convert_to_tensor(columns[None], "int64"))
    match initializer:
        case RandomUniform(low, high):
            return _uniform(drawn, low, high - low)
        case GlorotUniform():
            limit = math.sqrt(3.0 / dim)
            return _uniform(drawn, -limit, 2.0 * limit)
        case RandomNormal(mean, stddev):
            return _normal(drawn, mean, stddev, 1.0, NORMAL_REACH)
        case TruncatedNormal(mean, stddev):
            return _normal(drawn, mean, stddev, TWO_SIGMA_MASS, 2.0)
    raise TypeError(f"{initializer!r} draws no rows")


def _signed(word: int) -> int:
    """Return the int64 of the same bits as a uint64."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def _mixed(word: int) -> int:
    """Return what _mix returns, of one uint64."""
    for shift, factor in zip((30, 27), _MULTIPLIERS, strict=True):
        word = (word ^ (word >> shift)) * factor % _WORD
    return word ^ (word >> 31)


def _mix(words: Any) -> Any:
    for shift, factor in zip((30, 27), _MULTIPLIERS, strict=True):
        words = (words ^ _shifted(words, shift)) * _signed(factor)
    return words ^ _shifted(words, 31)


def _shifted(words: Any, bits: int) -> Any:
    """Shift the bits of int64 to the right, as those of uint64: with zeros."""
    return keras.ops.bitwise_right_shift(words, bits) & ((1 << (64 - bits)) - 1)


def _uniform(drawn: Any, low: float, width: float) -> Any:
    return low + width * (keras.ops.cast(_shifted(drawn, 11), "float64") * 1.1102230246251565e-16)


def _normal(drawn: Any, mean: float, stddev: float, mass: float, cut: float) -> Any:
    ops = keras.ops
    q = ((ops.cast(_shifted(drawn, 12), "float64") + 0.5) * 2.220446049250313e-16 - 0.5) * mass
    away = ops.absolute(q)
    central = q * _ratio(random_kernels.CENTRE, 0.180625 - q * q)
    r = ops.sqrt(-_log(0.5 - away))
    tail = ops.where(r <= 5.0, _ratio(random_kernels.TAIL, r - 1.6), _ratio(random_kernels.FAR_TAIL, r - 5.0))
    tail = ops.clip(ops.where(q < 0.0, -tail, tail), -cut, cut)
    return mean + stddev * ops.where(away > 0.425, tail, central)


def _ratio(polynomials: Any, x: Any) -> Any:
    above, below = polynomials
    n, d = above[0] * x + above[1], below[0] * x + below[1]
    for up, down in zip(above[2:], below[2:], strict=True):
        n, d = n * x + up, d * x + down
    return n / d


def _log(x: Any) -> Any:
    """Return ln(x), as random_kernels.log does."""
    ops = keras.ops
    bits = _view(x, "int64")
    exponent = ops.bitwise_right_shift(bits - 0x3FE6A09E667F3BCD, 52)
    mantissa = _view(bits - ops.bitwise_left_shift(exponent, 52), "float64")
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    tail = 1.0 / 19.0 + z * (1.0 / 21.0)
    tail = 1.0 / 11.0 + z * (1.0 / 13.0 + z * (1.0 / 15.0 + z * (1.0 / 17.0 + z * tail)))
    tail = z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z * tail))))
    return ops.cast(exponent, "float64") * random_kernels.LN2 + (2.0 * s + 2.0 * s * tail)


def _view(tensor: Any, dtype: str) -> Any:
    """Return a tensor's bits as another dtype of the same size."""
    match keras.backend.backend():
        case "tensorflow":
            import tensorflow as tf

            return tf.bitcast(tensor, dtype)
        case "jax":
            import jax

            return jax.lax.bitcast_convert_type(tensor, np.dtype(dtype))
    import torch

    return tensor.view(getattr(torch, dtype))
