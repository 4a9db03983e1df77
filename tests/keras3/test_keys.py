"""Ids: pairs of int32, and Inputs to whose dtype Keras casts them."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import kvemb.keras as kk
from kvemb.keras.keys import joined_keys


def test_split_keys_are_joined_again():
    keys = np.array([[0, -1, 2**31], [-(2**63), 2**63 - 1, 2**32]])
    pairs = kk.split_keys(keys)
    assert (pairs.dtype, pairs.shape) == (np.int32, (2, 3, 2))
    np.testing.assert_array_equal(joined_keys(pairs), keys)
    with pytest.raises(TypeError, match="keys must be integers, got float64"):
        kk.split_keys([1.5])


def moved(given):
    """Ids that operations have made of an Input, and not computed."""
    ops = keras.ops
    parts = keras.layers.Concatenate()([given, ops.cast(given[:, 1:], given.dtype)])
    return ops.squeeze(ops.expand_dims(ops.reshape(parts, (-1, 5)), 1), 1)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="does not apply: the layer itself warns of 32 bits")
def test_an_input_of_32_bits_for_keys_of_64_is_told(store):
    layers = [
        kk.EmbeddingBag("bags", 2, store=store),
        kk.Embedding("rows", 2, store=store),
        kk.DistributedEmbedding([{"table": {"name": "tables", "embedding_dim": 2}}], store=store),
    ]
    for layer in layers:
        for change in (lambda given: given, moved):
            given = change(keras.Input((3,), dtype="int32"))
            with pytest.warns(UserWarning, match=r"has dtype int32, to which Keras casts.*give it dtype=.int64., or"):
                layer([given] if isinstance(layer, kk.DistributedEmbedding) else given)
        given = moved(keras.Input((3,), dtype="int64"))
        layer([given] if isinstance(layer, kk.DistributedEmbedding) else given)
    layers[0](keras.Input((3,), dtype="int32") % 1000)  # which computes ids of its own


def test_a_float_input_that_is_cast_to_integers_is_told(words):
    """Keras rounds ids above 2**24 to those of float32, and the cast comes too late."""
    with pytest.warns(UserWarning, match="has dtype float32, to which Keras casts ids, and larger ones become others"):
        kk.EmbeddingBag(words)(keras.ops.cast(keras.Input((3,)), "int32"))


def test_a_sequential_without_an_input_is_refused_with_the_cure(words, clicks):
    """Keras gives it an Input of floats, as it does before keras.layers.Embedding."""
    model = keras.Sequential([kk.EmbeddingBag(words), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(Exception, match=r"give the keras.Input dtype='int64', also as the first layer of a keras"):
        model.fit(*clicks, verbose=0)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), kk.EmbeddingBag(words), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*clicks, verbose=0)
