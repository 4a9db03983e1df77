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


@keras.saving.register_keras_serializable("tests")
class Computing(keras.Model):
    """A model that computes with ids before it looks them up. how: the name of a function of COMPUTED."""

    def __init__(self, how, **arguments):
        super().__init__(**arguments)
        self.how, self.rows, self.out = how, kk.EmbeddingBag("words"), keras.layers.Dense(1)

    def call(self, ids):
        return self.out(self.rows(COMPUTED[self.how](ids)))

    def get_config(self):
        return {**super().get_config(), "how": self.how}


COMPUTED = {
    "modulo": lambda ids: ids % 7,
    "quotient": lambda ids: ids // 2,
    "where": lambda ids: keras.ops.where(ids > 5, ids, 0),
    "concatenate": lambda ids: keras.ops.concatenate([ids, keras.ops.maximum(ids, 3)], axis=-1),
    "cast": lambda ids: keras.ops.bitwise_and(keras.ops.cast(ids, "int32"), 7),
    "bits": lambda ids: keras.ops.bitwise_and(ids, 7),
}


@pytest.mark.parametrize("how", COMPUTED)
@pytest.mark.filterwarnings("ignore:Model 'computing.*had a build config")
@pytest.mark.filterwarnings("ignore:Layer 'computing.*looks like it has unbuilt state")
@pytest.mark.filterwarnings("ignore:.build.. was called on layer 'computing")
def test_a_saved_model_that_computes_with_ids_has_its_weights_or_says_what_to_do(how, words, tmp_path):
    """Keras builds it with floats. What floats do not have left the dense weights new, with a warning alone."""
    ids = np.arange(12, dtype=np.int32).reshape(4, 3)
    with words.resource_handle[0].as_default():
        model = Computing(how)
        expected = model.predict(ids, verbose=0)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        if how == "bits" and keras.backend.backend() != "torch":
            for _ in range(2):
                with pytest.raises((ValueError, RuntimeError), match=r"Let call begin with ids = keras\.ops\.cast"):
                    loaded.predict(ids, verbose=0)
        else:
            np.testing.assert_array_equal(loaded.predict(ids, verbose=0), expected)
