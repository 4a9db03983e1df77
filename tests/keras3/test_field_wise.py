"""FieldWiseEmbedding: the ids of each field of an example, pooled."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import losses, subclassed

import kvemb.keras as kk

IDS = np.array([[23, 12, 0], [9, 13, 10]], np.int32)


@keras.saving.register_keras_serializable("tests")
def field_of(ids):
    """The field of an id."""
    return ids % 3


@keras.saving.register_keras_serializable("tests")
def high_bits(ids):
    """The field of an id, of which only integers have one."""
    return keras.ops.right_shift(ids, 5)


def test_rows_are_pooled_by_field(words):
    """TFRA's own example: rows of ones."""
    words.upsert(np.arange(100, dtype=np.int32), np.ones((100, 4), np.float32))
    fields = kk.FieldWiseEmbedding(words, nslots=3, slot_map_fn=field_of)
    found = keras.ops.convert_to_numpy(fields(IDS))
    assert found[:, :, 0].tolist() == [[2, 0, 1], [1, 2, 0]]
    found = kk.FieldWiseEmbedding(words, nslots=3, slot_map_fn=field_of, combiner="max", padding_idx=0)(IDS)
    assert keras.ops.convert_to_numpy(found)[:, :, 0].tolist() == [[1, 0, 1], [1, 1, 0]]
    weights = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    found = keras.ops.convert_to_numpy(fields(IDS, weights, IDS != 13))
    assert found[:, :, 0].tolist() == [[5, 0, 1], [4, 6, 0]]


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_model_is_trained_and_saved(words, tmp_path):
    layers = [keras.Input((3,), dtype="int32"), kk.FieldWiseEmbedding(words, nslots=3, slot_map_fn=field_of)]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])
    assert model.layers[0].output.shape == (None, 3, 4)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    ids = np.random.default_rng(0).integers(0, 100, (256, 3)).astype(np.int32)
    found = losses(model, (ids, (ids % 2).sum(1, keepdims=True).astype(np.float32)))
    assert found[-1] < found[0]
    model.save(tmp_path / "model.keras")
    with words.resource_handle[0].as_default():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))


def test_a_saved_subclassed_model_has_its_dense_weights(words, clicks, tmp_path):
    """Keras builds it with floats, of which a function such as this one computes no field."""
    fields = kk.FieldWiseEmbedding(words, nslots=3, slot_map_fn=high_bits)
    model = subclassed(fields)
    losses(model, clicks, epochs=1)
    expected = model.predict(clicks[0], verbose=0)
    model.save(tmp_path / "model.keras")
    with words.resource_handle[0].as_default():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(clicks[0], verbose=0), expected)


def test_wrong_arguments_are_said(words):
    with pytest.raises(TypeError, match="slot_map_fn must be a function"):
        kk.FieldWiseEmbedding(words, nslots=3)
    with pytest.raises(ValueError, match="nslots"):
        kk.FieldWiseEmbedding(words, nslots=0, slot_map_fn=field_of)
