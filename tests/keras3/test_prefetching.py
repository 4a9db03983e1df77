"""prefetching: the same batches, whose cold rows are read ahead."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, losses

import kvemb.keras as kk

BACKEND = keras.backend.backend()


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def test_fit_has_the_same_losses(words, clicks, store):
    other = store.get_variable("other", dim=4, key_dtype="int32", hot_rows=16, optimizer=words.optimizer)
    other.upsert(*words.export())
    ids, labels = clicks
    batches = [(ids[at : at + 64], labels[at : at + 64]) for at in range(0, 256, 64)]
    expected = losses(classifier(kk.Embedding(words)), clicks)
    layer = kk.Embedding(other)
    plain = {"batch_size": None, "shuffle": False}
    found = losses(classifier(layer), (kk.prefetching(Batches(batches), {layer: 0}, depth=2),), **plain)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    one_pass = kk.prefetching(batches, {other: lambda batch: batch[0]})
    losses(classifier(layer), (one_pass,), epochs=1, steps_per_epoch=4, **plain)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(64)
        other.upsert(*words.export())
        ahead = kk.prefetching(dataset, {layer: 0})
        assert ahead.element_spec == dataset.element_spec
        found = losses(classifier(layer), (ahead,), epochs=2, **plain)
        np.testing.assert_allclose(found, losses(classifier(kk.Embedding(words)), clicks, epochs=2), atol=1e-6)


def test_wrong_arguments_are_said(words):
    with pytest.raises(TypeError, match="dataset must be an iterable"):
        kk.prefetching(3, {words: 0})
    with pytest.raises(TypeError, match="expected a Variable, or a layer of one"):
        kk.prefetching([], {"words": 0})
    with pytest.raises(ValueError, match="depth"):
        kk.prefetching([], {words: 0}, depth=17)
    with pytest.raises(KeyError, match="the batch has no field 'ids', where the ids of 'words' should be"):
        list(kk.prefetching([{"x": 1}, {"x": 2}], {words: "ids"}))
