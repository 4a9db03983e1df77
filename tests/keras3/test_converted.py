"""Optimizers and initializers of Keras as kvemb's: the same steps, and the same distributions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, dense_embedding, losses

import kvemb
import kvemb.keras as kk
from kvemb.keras.converted import kvemb_initializer, kvemb_optimizer

KEYS = np.arange(100, dtype=np.int32)
DENSE = np.tile(KEYS[:99].reshape(-1, 3), (8, 1))  # every key in every batch, as Keras' steps are on the whole weight
OPTIMIZERS = [
    lambda: keras.optimizers.SGD(0.3),
    lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.01),
    lambda: keras.optimizers.Adagrad(0.3),
    lambda: keras.optimizers.Adam(0.05),
    lambda: keras.optimizers.Adam(0.05, amsgrad=True),
    lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    lambda: keras.optimizers.Ftrl(0.3),
]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="does not apply: rows are trained alike on all backends")
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_steps_are_those_of_keras(store, make):
    rule = kvemb_optimizer(make(), "words")
    words = store.get_variable("words", dim=4, key_dtype="int32", optimizer=rule)
    if not isinstance(rule, kvemb.optimizers.Ftrl):  # which in Keras forgets the rows at its first step
        words.upsert(KEYS, np.random.default_rng(2).normal(0, 0.1, (100, 4)).astype(np.float32))
    tied = dense_embedding(words, 99)
    data = DENSE, (DENSE[:, :1] < 50).astype(np.float32)
    losses(classifier(tied, optimizer=make()), data, epochs=2, batch_size=33)
    losses(classifier(kk.Embedding(words), optimizer=make()), data, epochs=2, batch_size=33)
    np.testing.assert_allclose(words.lookup(KEYS[:99]), tied.get_weights()[0], atol=1e-3)


def test_what_is_not_converted_is_said():
    assert kvemb_optimizer(kvemb.optimizers.LAMB(), "ads") == kvemb.optimizers.LAMB()
    with pytest.raises(ValueError, match="the optimizer of table 'ads', RMSprop, is not one that is converted"):
        kvemb_optimizer("rmsprop", "ads")
    with pytest.raises(ValueError, match="schedule to the callback"):
        kvemb_optimizer(keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)), "ads")
    with pytest.raises(ValueError, match="has global_clipnorm=1"):
        kvemb_optimizer(keras.optimizers.SGD(global_clipnorm=1.0), "ads")
    with pytest.raises(ValueError, match="is not converted; give one of kvemb"):
        kvemb_initializer("orthogonal", 9, 4, "ads")
    with pytest.raises(ValueError, match="depends on vocabulary_size"):
        kvemb_initializer("glorot_uniform", None, 4, "ads")


def test_layers_take_what_keras_has(store):
    layer = kk.Embedding(
        "words",
        4,
        store=store,
        optimizer=keras.optimizers.Adagrad(0.5),
        initializer=keras.initializers.RandomNormal(0.0, 0.1),
        key_dtype="int32",
    )
    rule = kvemb.optimizers.Adagrad(0.5, initial_accumulator_value=0.1, epsilon=1e-7)
    assert (layer.variable.optimizer, layer.variable.initializer.stddev) == (rule, 0.1)
    # Keras draws a seed for each object; the variable's is that of its name.
    again = kk.EmbeddingBag("words", store=store, initializer=keras.initializers.RandomNormal(0.0, 0.1))
    assert again.variable is layer.variable
    bags = kk.EmbeddingBag("bags", 4, store=store, optimizer="sgd", initializer="ones", key_dtype="int32")
    assert (bags.variable.optimizer, bags.variable.lookup([5]).tolist()) == (kvemb.optimizers.SGD(0.01), [[1, 1, 1, 1]])
    with pytest.raises(ValueError, match="table 'tags' depends on vocabulary_size"):
        kk.Embedding("tags", 4, store=store, initializer="glorot_uniform")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        layer = kk.Embedding("halves", 4, store=store, key_dtype=tf.int32, value_dtype=tf.float16)
        assert (layer.variable.key_dtype.name, layer.variable.value_dtype.name) == ("int32", "float16")


@pytest.mark.parametrize("name", ["zeros", "ones", "random_uniform", "random_normal", "truncated_normal",
                                  "glorot_uniform", "he_normal", "lecun_uniform"])  # fmt: skip
def test_initializers_have_the_distributions_of_keras(store, name):
    rows = store.get_variable("rows", dim=50, initializer=kvemb_initializer(name, 400, 50, "rows")).lookup(range(400))
    weight = keras.ops.convert_to_numpy(keras.initializers.get(name)((400, 50)))
    assert rows.mean() == pytest.approx(float(weight.mean()), abs=float(weight.std()) / 30 + 1e-6)
    assert rows.std() == pytest.approx(float(weight.std()), rel=0.03)
    assert abs(rows).max() == pytest.approx(float(abs(weight).max()), rel=0.3)
