"""Embedding under fit, evaluate and predict, against keras.layers.Embedding from the same rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, dense_embedding, losses

import kvemb
import kvemb.keras as kk

BACKEND = keras.backend.backend()
KEYS = np.arange(100, dtype=np.int32)
# PyTorch's trainer has one step an execution.
COMPILED = [{}, {"run_eagerly": True}, {"jit_compile": False, "steps_per_execution": 1 if BACKEND == "torch" else 2}]


@pytest.mark.parametrize("compiled", COMPILED, ids=["auto", "eager", "two steps"])
def test_fit_trains_rows_as_it_trains_a_weight(words, clicks, compiled):
    """Two layers on the variable, and keys that occur often: their gradients are summed before one step."""
    tied, epochs = dense_embedding(words), 1 if "run_eagerly" in compiled else 3
    expected = losses(classifier(tied, tied, **compiled), clicks, epochs)
    found = losses(classifier(kk.Embedding(words), kk.EmbeddingBag(words, combiner="sum"), **compiled), clicks, epochs)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(words.lookup(KEYS), tied.get_weights()[0], atol=1e-4)


def test_every_way_to_train_and_no_way_to_read_changes_rows(words, clicks):
    ids, labels = clicks
    model = classifier(kk.Embedding(words))
    size, before = words.size(), words.lookup(KEYS)
    uses = words.export(with_scores=True)
    model.predict(ids + 1000, verbose=0)
    model.evaluate(ids + 2000, labels, verbose=0)
    model.test_on_batch(ids[:9] + 3000, labels[:9])
    model(keras.ops.convert_to_tensor(ids[:9] + 4000))
    assert words.size() == size
    for left, right in zip(uses, words.export(with_scores=True), strict=True):
        np.testing.assert_array_equal(left, right)
    model.train_on_batch(ids[:9], labels[:9])
    assert (words.lookup(KEYS) != before).any()
    used = np.unique(ids[:9])
    assert not np.isin(np.flatnonzero((words.lookup(KEYS) != before).any(axis=1)), used, invert=True).any()
    model.train_on_batch(ids[:9] + 5000, labels[:9])
    assert words.size() == size + len(used)


class Dots(keras.Model):
    """A subclassed model without dense weights, whose layers have one variable each, or the same."""

    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def call(self, ids):
        rows = self.left(ids[:, 0]) * self.right(ids[:, 1])
        return keras.ops.sum(rows, axis=1, keepdims=True)


def test_a_model_of_tables_alone_a_sequential_one_and_a_step_once_a_batch(store, clicks):
    """With SGD(1) and a gradient of 1 for each occurrence, a row says how often it was trained."""
    ids, _ = clicks
    ones = {"dim": 1, "key_dtype": "int32", "optimizer": kvemb.optimizers.SGD(1.0)}
    counts = store.get_variable("counts", **ones)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), kk.EmbeddingBag(counts, combiner="sum")])
    model.compile(optimizer="sgd", loss=lambda _, out: keras.ops.sum(out))
    model.fit(ids, np.zeros((256, 1), np.float32), batch_size=64, epochs=2, shuffle=False, verbose=0)
    expected = np.bincount(ids.ravel(), minlength=100)
    # Keras averages a batch's loss over its examples only if it has one loss each: this one is a sum.
    np.testing.assert_allclose(-counts.lookup(KEYS)[:, 0] / 2, expected, atol=1e-3)
    table = store.get_variable("table", initializer=kvemb.RandomNormal(0, 0.1, seed=1), **{**ones, "dim": 4})
    dots = Dots(kk.Embedding(table), kk.Embedding(table))
    dots.compile(optimizer="sgd", loss="mse")
    start = dots.evaluate(ids, ids[:, :1] / 100, verbose=0)
    dots.fit(ids, ids[:, :1] / 100, epochs=2, verbose=0)
    assert dots.evaluate(ids, ids[:, :1] / 100, verbose=0) < start


def test_adam_takes_one_step_on_a_row_that_two_layers_use(words):
    """After one step of Adam each element has moved by the rate, however many gradients it got."""
    words = words.resource_handle[0].get_variable(
        "adam", dim=4, key_dtype="int32", optimizer=kvemb.optimizers.Adam(0.1)
    )
    model = classifier(kk.Embedding(words), kk.Embedding(words), ids=2)
    ids, labels = np.array([[7, 7], [7, 8]], np.int32), np.ones((2, 1), np.float32)
    before = words.lookup([7, 8])
    model.train_on_batch(ids, labels)
    np.testing.assert_allclose(abs(words.lookup([7, 8]) - before), 0.1, rtol=1e-3)


def test_a_frozen_layer_keeps_its_rows_and_other_layers_train_them(words, clicks):
    frozen = kk.Embedding(words, trainable=False)
    before = words.lookup(KEYS)
    losses(classifier(frozen), clicks, epochs=1)
    np.testing.assert_array_equal(words.lookup(KEYS), before)
    assert frozen.trainable_variables == []
    losses(classifier(frozen, kk.Embedding(words)), clicks, epochs=1)
    assert (words.lookup(KEYS) != before).any()
    model = classifier(kk.Embedding(words))
    model.trainable = False
    assert model.trainable_variables == []


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(words, clicks, policy):
    """LossScaleOptimizer multiplies gradients by 32,768 at first; rows must not see that."""
    layer, start = kk.Embedding(words, dtype=policy), words.lookup(KEYS)
    tied = dense_embedding(words)
    expected = losses(classifier(tied), clicks)
    keras.config.set_dtype_policy(policy)
    try:
        model = classifier(layer)
        found = losses(model, clicks)
    finally:
        keras.config.set_dtype_policy("float32")
    assert keras.backend.standardize_dtype(layer(clicks[0][:2]).dtype) == policy.removeprefix("mixed_")
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert 0 < abs(words.lookup(KEYS) - start).max() < 1
    np.testing.assert_allclose(words.lookup(KEYS), tied.get_weights()[0], atol=0.02)


def test_a_scaled_loss_that_overflows_trains_nothing(words):
    ids, labels = np.array([[1, 2, 3]], np.int32), np.ones((1, 1), np.float32)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = classifier(kk.Embedding(words), loss=lambda y, out: keras.ops.sum(keras.ops.cast(out, "float32")) * 1e3)
    finally:
        keras.config.set_dtype_policy("float32")
    rows, weights = words.lookup(KEYS), model.layers[-1].get_weights()
    model.train_on_batch(ids, labels)
    np.testing.assert_array_equal(words.lookup(KEYS), rows)
    for left, right in zip(weights, model.layers[-1].get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_rows_begin_as_those_of_keras(store):
    ids = np.arange(4000, dtype=np.int32)
    for kind in (kk.Embedding, kk.EmbeddingBag):
        layer = kind(kind.__name__, 8, store=store, key_dtype="int32")
        rows = keras.ops.convert_to_numpy(layer(ids[:, None]))
        assert (rows.min() >= -0.05, rows.max() <= 0.05, bool(rows.std() > 0.028)) == (True, True, True)
    assert not keras.ops.convert_to_numpy(
        kk.Embedding("zeros", 2, store=store, key_dtype="int32", initializer=0)(ids)
    ).any()
    table = {"name": "table", "embedding_dim": 16, "key_dtype": "int32"}
    rows = kk.DistributedEmbedding({"table": table}, store=store)
    (variable,) = rows.tables.values()
    found = variable.lookup(ids)
    assert abs(found.std() - 0.25) < 0.005, "as a VarianceScaling by fan_out, with which keras-rs' tables begin"
    assert np.abs(found).max() < 0.57


def test_masks_padding_and_pairs(words, store):
    ids = np.array([[5, 0], [7, 5]], np.int32)
    layer = kk.Embedding(words, mask_zero=True, padding_idx=7)
    rows = keras.ops.convert_to_numpy(layer(ids))
    expected = words.lookup(ids)
    expected[1, 0] = 0
    np.testing.assert_array_equal(rows, expected)
    assert keras.ops.convert_to_numpy(layer.compute_mask(ids)).tolist() == [[True, False], [True, True]]
    size = words.size()
    words.remove([7])
    classifier(layer, ids=2).train_on_batch(ids, np.ones((2, 1), np.float32))
    assert words.size() == size - 1
    long = store.get_variable("long", dim=1, optimizer=kvemb.optimizers.SGD(0.5))
    far = np.array([[2**40 + 3], [-(2**50)]])
    long.upsert(far[:, 0], [[1.0], [2.0]])
    pairs = kk.Embedding(long, split_keys=True)
    assert keras.ops.convert_to_numpy(pairs(kk.split_keys(far))).ravel().tolist() == [1.0, 2.0]
    assert tuple(pairs.compute_output_spec(keras.KerasTensor((None, 3, 2), dtype="int32")).shape) == (None, 3, 1)


WRONG = [
    (lambda words: kk.Embedding(words)(np.ones((2, 3), np.float32)), TypeError, "ids must be integers, got float32"),
    (lambda words: kk.Embedding(words)(keras.Input((3,))), TypeError, "give the keras.Input dtype='int64'"),
    (lambda words: kk.Embedding(words, split_keys=True)(np.ones((2, 3), np.int32)), TypeError, "int32 of shape"),
    (lambda words: kk.Embedding(input_dim=9, output_dim=3), TypeError, "no argument input_dim here: keys are any"),
    (lambda words: kk.Embedding("new", 3, optimiser="adam"), TypeError, "there is no argument 'optimiser'"),
    (lambda words: kk.Embedding("new"), TypeError, "dim is missing"),
    (lambda words: kk.Embedding(words, 5), ValueError, "exists already: leave out dim"),
    (lambda words: kk.Embedding(words, mask_zero=1), TypeError, "mask_zero must be True or False"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_wrong_arguments_are_said(words, call, kind, message):
    with words.resource_handle[0].as_default(), pytest.raises(kind, match=message):
        call(words)


def test_rows_without_an_optimizer_a_closed_store_and_a_poisoned_one(open_store, tmp_path, clicks, caplog):
    """The user sees kvemb's message: in the framework's error, and beside it."""
    store = open_store(tmp_path / "other")
    bare = store.get_variable("bare", dim=2, key_dtype="int32")
    with pytest.raises(ValueError, match="'bare' has no optimizer, so its rows cannot be trained"):
        losses(classifier(kk.Embedding(bare)), clicks)
    variable = store.get_variable("some", dim=2, key_dtype="int32", optimizer=kvemb.optimizers.SGD(0.1))
    model = classifier(kk.Embedding(variable))
    losses(model, clicks, epochs=1)

    class Close(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                store.close()

    with pytest.raises(Exception, match=r"the store .* is closed; open it again"):
        losses(model, clicks, callbacks=[Close()])
    poisoned = open_store(tmp_path / "poisoned")
    other = poisoned.get_variable("some", dim=2, key_dtype="int32", optimizer=kvemb.optimizers.SGD(0.1))
    poisoned.state.poison(OSError("no space left"))
    with pytest.raises(Exception, match="refuses writes, because a change failed: no space left"):
        losses(classifier(kk.Embedding(other)), clicks)
    if BACKEND != "torch":  # whose errors are kvemb's own
        assert "is closed; open it again with kvemb.open" in caplog.text
        assert "Poisoned: " in caplog.text


def test_keys_that_jax_would_cut_are_said(store):
    if BACKEND == "jax":
        with pytest.warns(UserWarning, match=r"JAX cuts ids to 32 bits.*split_keys.*key_dtype='int32'"):
            kk.Embedding("long", 2, store=store)
    else:
        kk.Embedding("long", 2, store=store)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: ragged tensors are TensorFlow's")
def test_ragged_ids_have_ragged_rows(words):
    import tensorflow as tf

    ids = tf.ragged.constant([[5, 7], [], [9]], dtype=tf.int32)
    layer = kk.Embedding(words)
    found = layer(ids)
    np.testing.assert_array_equal(found.flat_values, words.lookup([5, 7, 9]))
    np.testing.assert_array_equal(found.row_splits, ids.row_splits)
    model = keras.Sequential([keras.Input((None,), dtype="int32", ragged=True), layer])
    assert model.layers[0].output.ragged
    before = words.lookup([5, 7, 9])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids, training=True).flat_values)
    keras.optimizers.SGD().apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    np.testing.assert_allclose(words.lookup([5, 7, 9]), before - 0.5, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: tf.function is TensorFlow's")
def test_a_call_that_is_a_tf_function_is_told(words, clicks):
    """Keras traces it without a gradient tape, and plain Keras raises 'No gradients provided' in fit."""
    import tensorflow as tf

    class Traced(Dots):
        call = tf.function(Dots.call)

    layer = kk.Embedding(words)
    model = Traced(layer, layer)
    with pytest.warns(UserWarning, match=r"Traced\.call is a tf\.function.*Leave out @tf\.function"):
        model(clicks[0][:2])
    Dots(layer, layer)(clicks[0][:2])
