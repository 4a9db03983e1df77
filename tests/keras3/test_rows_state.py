"""What restores the dense weights of an earlier state raises, because rows do not go back with them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, losses

import kvemb.keras as kk

CALLBACKS = keras.callbacks


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_weights_are_set_and_loaded_only_if_the_rows_are_theirs(words, clicks, tmp_path):
    model = classifier(kk.Embedding(words))
    losses(model, clicks, epochs=1)
    weights, expected = model.get_weights(), model.predict(clicks[0], verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")

    def load():
        with words.resource_handle[0].as_default():
            return keras.saving.load_model(tmp_path / "model.keras")

    model.set_weights(weights)
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(load().predict(clicks[0], verbose=0), expected)
    losses(model, clicks, epochs=1)
    theirs = "the rows of 'words' are not those of"
    for change in (lambda: model.set_weights(weights), lambda: model.load_weights(tmp_path / "model.weights.h5"), load):
        with pytest.raises(ValueError, match=theirs):
            change()
        with kk.dense_only():
            change()
    np.testing.assert_array_equal(model.layers[-1].get_weights()[0], weights[-2])


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_rows_of_another_process_are_compared(words, clicks, open_store, tmp_path):
    """The store is opened again, as by another process, with the rows of the weights, and with others."""
    store = words.resource_handle[0]
    model = classifier(kk.Embedding(words))
    losses(model, clicks, epochs=1)
    model.save(tmp_path / "model.keras")
    store.close()
    with open_store(store.path).as_default():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        losses(loaded, clicks, epochs=1)
    loaded.layers[1].variable.resource_handle[0].close()
    with open_store(store.path).as_default(), pytest.raises(ValueError, match="are not those of the saved weights"):
        keras.saving.load_model(tmp_path / "model.keras")


@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize(
    "make",
    [
        lambda place: CALLBACKS.EarlyStopping("loss", restore_best_weights=True),
        lambda place: CALLBACKS.ModelCheckpoint(str(place / "best.keras"), "loss", save_best_only=True),
        lambda place: CALLBACKS.BackupAndRestore(str(place / "backup")),
    ],
    ids=["EarlyStopping", "ModelCheckpoint", "BackupAndRestore"],
)
def test_callbacks_that_restore_weights_raise_after_the_first_epoch(words, clicks, tmp_path, make):
    model, callback = classifier(kk.Embedding(words)), make(tmp_path)
    name = type(callback).__name__
    with pytest.raises(ValueError, match=f"{name} would restore .* but not the rows of 'words'.*save_best_only=True"):
        losses(model, clicks, epochs=2, callbacks=[callback])
    losses(model, clicks, epochs=1, callbacks=[CALLBACKS.EarlyStopping("loss")])
    with kk.dense_only():
        losses(model, clicks, epochs=1, callbacks=[make(tmp_path / "again")])


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="does not apply: TensorFlow's checkpoints")
def test_a_checkpoint_of_tensorflow_is_restored_only_if_the_rows_are_its(words, clicks, tmp_path):
    import tensorflow as tf

    model = classifier(kk.Embedding(words))
    losses(model, clicks, epochs=1)
    saved = tf.train.Checkpoint(model=model)
    path = saved.save(str(tmp_path / "saved"))
    saved.restore(path)
    losses(model, clicks, epochs=1)
    with pytest.raises(ValueError, match="are not those of the checkpoint of TensorFlow"):
        saved.restore(path)
