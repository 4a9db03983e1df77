"""What restores the dense weights of an earlier state takes the rows back, too, or raises."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier, losses

import kvemb
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


class Seen(CALLBACKS.Callback):
    """Keeps the rows and the weights at the end of each epoch. fails: the epoch after which it raises."""

    def __init__(self, words, fails=None):
        super().__init__()
        self.words, self.fails, self.rows, self.weights = words, fails, [], []

    def on_epoch_end(self, epoch, logs=None):
        with kk.dense_only():
            self.weights.append([each for each in self.model.get_weights() if each.ndim])
        self.rows.append(self.words.export())
        if epoch == self.fails:
            raise InterruptedError

    def check(self, model, epoch, words=None):
        """Both are those of an epoch."""
        for found, expected in zip((words or self.words).export(), self.rows[epoch], strict=True):
            np.testing.assert_array_equal(found, expected)
        with kk.dense_only():
            dense = [each for each in model.get_weights() if each.ndim]
        for found, expected in zip(dense, self.weights[epoch], strict=True):
            np.testing.assert_array_equal(found, expected)


# The best epoch is the first one.
BEST = {"monitor": "loss", "mode": "max"}


def test_early_stopping_goes_back_to_the_best_epoch_with_its_rows(words, clicks):
    model, seen = classifier(kk.Embedding(words), kk.EmbeddingBag(words)), Seen(words)
    stopping = CALLBACKS.EarlyStopping(patience=2, restore_best_weights=True, **BEST)
    losses(model, clicks, epochs=5, callbacks=[stopping, seen])
    assert len(seen.rows) == 3
    seen.check(model, 0)
    losses(model, clicks, epochs=1)  # training goes on
    with pytest.raises(AssertionError):
        seen.check(model, 0)


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_the_best_checkpoint_is_loaded_with_its_rows(words, clicks, open_store, tmp_path):
    store, path = words.resource_handle[0], tmp_path / "best.keras"
    model, seen = classifier(kk.Embedding(words)), Seen(words)
    losses(model, clicks, callbacks=[CALLBACKS.ModelCheckpoint(str(path), save_best_only=True, **BEST), seen])
    model.load_weights(path)
    seen.check(model, 0)
    losses(model, clicks, epochs=1)
    store.close()
    with open_store(store.path) as again, again.as_default():  # as in another process
        loaded = keras.saving.load_model(path)
        seen.check(loaded, 0, again.variables["words"])
        for mark in again.marks:
            again.drop_mark(mark)
        losses(loaded, clicks, epochs=1)
        with pytest.raises(ValueError, match="are not those of the saved weights"):
            loaded.load_weights(path)


def test_a_fit_that_was_interrupted_goes_on_from_its_backup(words, clicks, open_store, tmp_path):
    store = words.resource_handle[0]
    other = store.get_variable("other", dim=4, key_dtype="int32", optimizer=words.optimizer)
    other.upsert(*words.export())
    expected = losses(classifier(kk.Embedding(other)), clicks, epochs=4)

    def backup():
        return CALLBACKS.BackupAndRestore(str(tmp_path / "backup"))

    with pytest.raises(InterruptedError):  # after the backup of the second epoch, and more steps
        losses(classifier(kk.Embedding(words)), clicks, epochs=4, callbacks=[backup(), Seen(words, fails=1)])
    words.upsert([1, 2], np.ones((2, 4), np.float32))
    store.close()
    with open_store(store.path) as again:
        model = classifier(kk.Embedding(again.variables["words"]))
        found = losses(model, clicks, epochs=4, callbacks=[backup()])
        np.testing.assert_allclose(found, expected[2:], rtol=1e-5)
    assert not (tmp_path / "backup").exists()


def test_rows_that_no_mark_has_are_refused_before_training_for_nothing(store, clicks, tmp_path):
    rule = kvemb.optimizers.SGD(0.5)
    memory = store.get_variable("m", dim=4, key_dtype="int32", optimizer=rule, kv_creator=kvemb.MemoryCreator())
    model = classifier(kk.Embedding(memory))
    for callback in (
        CALLBACKS.EarlyStopping("loss", restore_best_weights=True),
        CALLBACKS.ModelCheckpoint(str(tmp_path / "best.keras"), "loss", save_best_only=True),
        CALLBACKS.BackupAndRestore(str(tmp_path / "backup")),
    ):
        name = type(callback).__name__
        with pytest.raises(ValueError, match=f"{name} would restore .* but not the rows of 'm'.*save_best_only=True"):
            losses(model, clicks, epochs=2, callbacks=[callback])
    assert not (tmp_path / "backup").exists()  # half of one was left, and the next fit loaded it
    losses(model, clicks, epochs=1, callbacks=[CALLBACKS.EarlyStopping("loss")])
    with kk.dense_only():
        losses(model, clicks, epochs=1, callbacks=[CALLBACKS.EarlyStopping("loss", restore_best_weights=True)])


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


def test_weights_that_do_not_say_to_which_rows_they_belong_are_refused(words, clicks, tmp_path):
    """Tensors, and models in .h5 files: they set the dense part back alone, and nothing was said."""
    model = classifier(kk.EmbeddingBag(words))
    losses(model, clicks, epochs=1)
    tree = keras.tree.map_structure(keras.ops.copy, model.get_state_tree())
    model.save(tmp_path / "model.h5")
    changes = [lambda: model.set_state_tree(tree)]
    if keras.backend.backend() == "torch":
        import torch

        torch.save(model.state_dict(), tmp_path / "model.pt")
        changes.append(lambda: model.load_state_dict(torch.load(tmp_path / "model.pt")))
    if keras.backend.backend() != "jax":  # whose loops assign what a compiled step returned
        changes.append(lambda: model.trainable_variables[0].assign(keras.ops.zeros(())))

    def load():
        with words.resource_handle[0].as_default():
            keras.saving.load_model(tmp_path / "model.h5")

    losses(model, clicks, epochs=1)
    for change in (*changes, load):
        with pytest.raises((ValueError, RuntimeError), match="do not say to which state of the rows of 'words'"):
            change()
        with kk.dense_only():
            change()
    arrays = model.get_state_tree("numpy_array")
    model.set_state_tree(arrays)
    losses(model, clicks, epochs=1)
    with pytest.raises(ValueError, match="are not those of the weights to set"):
        model.set_state_tree(arrays)
