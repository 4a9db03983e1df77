"""EmbeddingBag: combiners, masks, weights and their gradients, against sums written out in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, losses

import kvemb.keras as kk

BACKEND = keras.backend.backend()
IDS = np.array([[5, 7, 0], [5, 5, 9], [0, 0, 0]], np.int32)


def expected(words, ids, combiner, weights=None, kept=None):
    """The pooled bags."""
    weights = np.ones(ids.shape) if weights is None else weights
    weights = weights if kept is None else weights * kept
    total = (words.lookup(ids) * weights[..., None]).sum(axis=-2)
    by = {"sum": 1.0, "mean": weights.sum(axis=-1), "sqrtn": np.sqrt((weights**2).sum(axis=-1))}[combiner]
    by = np.broadcast_to(by, total.shape[:-1])[..., None]
    return np.divide(total, by, out=np.zeros_like(total), where=by != 0)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combiners_with_masks_and_weights(words, combiner):
    weights = np.array([[0.5, 2, 1], [1, 1, 1], [3, 0, 0]], np.float32)
    kept = np.array([[True, False, True], [True, True, True], [False] * 3])

    def bag(*arguments, **options):
        return keras.ops.convert_to_numpy(kk.EmbeddingBag(words, combiner=combiner, **options)(*arguments))

    near = {"atol": 1e-6}
    np.testing.assert_allclose(bag(IDS), expected(words, IDS, combiner), **near)
    np.testing.assert_allclose(bag(IDS, mask_zero=True), expected(words, IDS, combiner, kept=IDS != 0), **near)
    np.testing.assert_allclose(bag(IDS, padding_idx=5), expected(words, IDS, combiner, kept=IDS != 5), **near)
    np.testing.assert_allclose(bag(IDS, weights), expected(words, IDS, combiner, weights), **near)
    np.testing.assert_allclose(bag(IDS, None, kept), expected(words, IDS, combiner, kept=kept), **near)
    found = bag(IDS, weights, kept, mask_zero=True)
    np.testing.assert_allclose(found, expected(words, IDS, combiner, weights, kept & (IDS != 0)), **near)
    deep = np.stack([IDS, IDS[::-1]])
    np.testing.assert_allclose(bag(deep), expected(words, deep, combiner), **near)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_a_bag_trains_as_its_rows_pooled_by_the_backend(words, store, clicks, combiner):
    """The bags of weights 1 are pooled by the backend, and those without weights by the store."""
    other = store.get_variable("other", dim=4, key_dtype="int32", optimizer=words.optimizer)
    other.upsert(*words.export())

    class Weighted(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.bag = kk.EmbeddingBag(other, combiner=combiner, mask_zero=True)

        def call(self, ids):
            return self.bag(ids, keras.ops.ones_like(ids, dtype="float32"))

    first = losses(classifier(kk.EmbeddingBag(words, combiner=combiner, mask_zero=True)), clicks)
    second = losses(classifier(Weighted()), clicks)
    np.testing.assert_allclose(first, second, atol=1e-5)
    keys = np.arange(100, dtype=np.int32)
    np.testing.assert_allclose(words.lookup(keys), other.lookup(keys), atol=1e-4)


def test_keys_that_are_left_out_get_no_rows(words):
    ids = np.array([[500, 0], [600, 501]], np.int32)
    words.remove([0])
    size = words.size()
    layer = kk.EmbeddingBag(words, mask_zero=True, padding_idx=0)
    classifier(layer, ids=2).train_on_batch(ids, np.ones((2, 1), np.float32))
    assert words.size() == size + 3


def extreme(rows, kept, pick):
    """The largest or smallest elements of the rows that count (bags, n, dim); zeros for a bag without any."""
    last = -np.inf if pick is np.max else np.inf
    found = pick(np.where(kept[..., None], rows, last), axis=-2)
    return np.where(kept.any(axis=-1)[..., None], found, 0)


@pytest.mark.parametrize("combiner", ["max", "min"])
def test_the_largest_and_the_smallest_elements(words, combiner):
    pick = {"max": np.max, "min": np.min}[combiner]
    rows, all_of_them = words.lookup(IDS), np.ones(IDS.shape, bool)

    def bag(*arguments, **options):
        return keras.ops.convert_to_numpy(kk.EmbeddingBag(words, combiner=combiner, **options)(*arguments))

    np.testing.assert_allclose(bag(IDS), extreme(rows, all_of_them, pick))
    np.testing.assert_allclose(bag(IDS, mask_zero=True), extreme(rows, IDS != 0, pick))
    weights = np.array([[0.5, 2, 1], [1, -1, 1], [3, 0, 0]], np.float32)
    found = bag(IDS, weights, IDS != 7)
    np.testing.assert_allclose(found, extreme(rows * weights[..., None], IDS != 7, pick), rtol=1e-6)
    layer = kk.EmbeddingBag(words, combiner=combiner, mask_zero=True)
    classifier(layer).train_on_batch(IDS, np.ones((3, 1), np.float32))
    changed = (words.lookup(IDS) != rows).any(axis=-1)
    assert changed[:2].any(axis=1).all()
    assert not changed[2].any()


def test_rows_are_clipped_to_a_norm_through_which_they_are_trained(words):
    """Against the gradient of the clipped rows, by differences."""
    words.upsert([5, 7, 9], np.array([[3, 0, 4, 0], [0.1, 0.2, 0, 0], [0, 0, 0, 0]], np.float32))
    ids, before = np.array([[5, 7, 9]], np.int32), words.lookup([5, 7, 9]).astype(np.float64)

    def clipped(rows):
        norms = np.linalg.norm(rows, axis=-1, keepdims=True)
        return rows * np.minimum(1, 1 / np.maximum(norms, 1e-9))

    layer = kk.EmbeddingBag(words, combiner="mean", max_norm=1.0)
    rows = keras.ops.convert_to_numpy(kk.Embedding(words, max_norm=1.0)(ids))
    np.testing.assert_allclose(rows[0], clipped(before), atol=1e-6)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(ids))[0], clipped(before).mean(axis=0), atol=1e-6)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    target = np.array([[1, 1, 0, 0]], np.float32)
    model.train_on_batch(ids, target)

    def loss(rows):
        return ((clipped(rows).mean(axis=0) - target[0]) ** 2).mean()

    gradient, step = np.zeros((3, 4)), 1e-6
    for place in np.ndindex(3, 4):
        moved = before.copy()
        moved[place] += step
        gradient[place] = (loss(moved) - loss(before)) / step
    np.testing.assert_allclose(words.lookup([5, 7, 9]), before - 0.5 * gradient, atol=1e-4)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: ragged and sparse tensors are TensorFlow's")
@pytest.mark.parametrize("options", [{}, {"combiner": "max"}, {"max_norm": 0.1}, {"padding_idx": 5}])
def test_ragged_and_sparse_bags_are_those_of_padded_ids(words, options):
    import tensorflow as tf

    ragged = tf.ragged.constant([[5, 7], [], [9, 500, 5]], dtype=tf.int32)
    weights = tf.ragged.constant([[0.5, 1.5], [], [1.0, 2.0, 3.0]], dtype=tf.float32)
    there = tf.sequence_mask(ragged.row_lengths())
    layer = kk.EmbeddingBag(words, **options)
    expected = layer(ragged.to_tensor(), None, there)
    np.testing.assert_allclose(layer(ragged), expected, atol=1e-6)
    np.testing.assert_allclose(layer(ragged.to_sparse()), expected, atol=1e-6)
    expected = layer(ragged.to_tensor(), weights.to_tensor(), there)
    np.testing.assert_allclose(layer(ragged, weights), expected, atol=1e-6)
    np.testing.assert_allclose(layer(ragged.to_sparse(), weights.to_sparse()), expected, atol=1e-6)
    with pytest.raises(ValueError, match="ragged ids have no mask"):
        layer.call(ragged, None, there)


def test_sparse_ids_that_no_layer_takes_are_refused(words):
    if BACKEND == "torch":
        import torch

        ids = torch.sparse_coo_tensor([[0], [1]], [5], (2, 2), dtype=torch.int32)
    elif BACKEND == "jax":
        from jax.experimental.sparse import BCOO

        ids = BCOO.fromdense(IDS)
    else:
        import tensorflow as tf

        ids = tf.sparse.from_dense(np.stack([IDS, IDS]))
    for layer in (kk.EmbeddingBag(words), kk.Embedding(words)):
        with pytest.raises(TypeError, match="ids must be dense, got a sparse"):
            layer.call(ids)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="does not apply: ragged tensors are TensorFlow's")
def test_ragged_bags(words):
    import tensorflow as tf

    bags = tf.ragged.constant([[5, 7], [], [9]], dtype=tf.int32)
    layer = kk.EmbeddingBag(words, combiner="mean")
    rows = words.lookup([5, 7, 9])
    with tf.GradientTape() as tape:
        out = layer(bags, training=True)
        loss = tf.reduce_sum(out)
    np.testing.assert_allclose(out, [rows[:2].mean(axis=0), np.zeros(4), rows[2]], atol=1e-6)
    gradients = tape.gradient(loss, layer.trainable_variables)
    np.testing.assert_array_equal(words.lookup([5, 7, 9]), rows)
    keras.optimizers.SGD().apply(gradients, layer.trainable_variables)
    np.testing.assert_allclose(words.lookup([5, 7, 9]), rows - [[0.25], [0.25], [0.5]], atol=1e-6)


def test_wrong_arguments_are_said(words):
    bag = kk.EmbeddingBag(words)
    with pytest.raises(ValueError, match=r"ids must have the shape \(..., n\).*ids\[:, None\]"):
        bag(np.array([1, 2], np.int32))
    with pytest.raises(ValueError, match="weights must have the shape of ids"):
        bag(IDS, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="mask must have the shape of ids"):
        bag(IDS, None, np.ones(3, bool))
    with pytest.raises(ValueError, match="combiner must be one of mean, sum, sqrtn, max, min, got 'std'"):
        kk.EmbeddingBag(words, combiner="std")
    with pytest.raises(ValueError, match="max_norm must be above 0"):
        kk.EmbeddingBag(words, max_norm=0)
    with pytest.raises(ValueError, match="mask_zero leaves key 0 out"):
        kk.EmbeddingBag(words, mask_zero=True, padding_idx=3)
