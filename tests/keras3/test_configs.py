"""Configs, saved models and clones: they carry the layer, and find the rows in a store that is open."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
from keras_models import classifier, losses, subclassed

import kvemb.keras as kk
from kvemb.errors import StoreNotFound


class First(keras.layers.Layer):
    """The first feature of a DistributedEmbedding."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def call(self, ids):
        return self.features([ids])[0]


def test_a_saved_model_finds_its_rows(words, clicks, tmp_path, no_default, open_store):
    store = words.resource_handle[0]
    bag = kk.EmbeddingBag(words, combiner="sqrtn", padding_idx=3, name="bag")
    pair = kk.DistributedEmbedding([{"table": {"name": "words", "variable": words}}], name="pair")
    model = classifier(kk.Embedding(words, mask_zero=True), bag, First(pair))
    losses(model, clicks, epochs=1)
    model = classifier(kk.Embedding(words, mask_zero=True), bag)
    model.save(tmp_path / "model.keras")
    expected = model.predict(clicks[0], verbose=0)
    with store.as_default():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(clicks[0], verbose=0), expected)
    again = loaded.get_layer("bag")
    assert (again.variable, again.combiner, again.padding_idx) == (words, "sqrtn", 3)
    clone = keras.models.clone_model(model)  # the rows are those of the open store
    assert clone.get_layer("bag").variable is words
    assert kk.DistributedEmbedding.from_config(pair.get_config()).tables == {"words": words}
    with open_store(tmp_path / "other").as_default(), pytest.raises(StoreNotFound, match="'words', but in the default"):
        keras.saving.load_model(tmp_path / "model.keras")
    config = bag.get_config()
    store.close()
    with pytest.raises(StoreNotFound, match=re.escape(f"with kvemb.open({str(store.path)!r})")):
        kk.EmbeddingBag.from_config(config)


def test_a_saved_subclassed_model_has_its_dense_weights(words, clicks, tmp_path):
    model = subclassed(kk.EmbeddingBag(words, combiner="sum", mask_zero=True))
    losses(model, clicks, epochs=1)
    model.save(tmp_path / "model.keras")
    with words.resource_handle[0].as_default():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(clicks[0], verbose=0), model.predict(clicks[0], verbose=0))
    for left, right in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)
