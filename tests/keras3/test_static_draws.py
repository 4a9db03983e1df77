"""Rows of random initializers as operations of the backend: the bits of the kernels'."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import kvemb
from kvemb.keras.static_draws import draw_rows

INITIALIZERS = [
    kvemb.RandomUniform(-0.05, 0.05, seed=7),
    kvemb.initializers.GlorotUniform(seed=2**64 - 1),
    kvemb.RandomNormal(0.1, 2.0, seed=3),
    kvemb.initializers.TruncatedNormal(0.0, 0.5, seed=0),
]


@pytest.fixture(autouse=True)
def _int64():
    """JAX has 64-bit numbers only if asked."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=lambda each: type(each).__name__)
def test_rows_are_those_of_the_kernels(initializer):
    keys = np.r_[np.arange(-300, 300), 2**63 - 1, -(2**63), 2**40].astype(np.int64)
    drawn = draw_rows(initializer, keras.ops.convert_to_tensor(keys, "int64"), 37)
    found = keras.ops.convert_to_numpy(keras.ops.cast(drawn, "float32"))
    assert found.tobytes() == initializer.rows(keys, 37, "float32").tobytes()


def test_an_initializer_of_one_row_draws_none():
    with pytest.raises(TypeError, match="draws no rows"):
        draw_rows(kvemb.initializers.Zeros(), keras.ops.zeros((1,), "int64"), 3)
