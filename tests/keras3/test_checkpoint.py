"""Checkpoint: an interrupted fit goes on with the losses that it would have had."""

from __future__ import annotations

from contextlib import suppress

import keras
import numpy as np
import pytest
from keras_models import subclassed

import kvemb
import kvemb.keras as kk

IDS = np.random.default_rng(4).integers(1, 60, (256, 4)).astype(np.int32)
LABELS = (IDS.min(axis=1, keepdims=True) < 12).astype(np.float32)


class Stopped(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    """Raises after a batch of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.at, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise Stopped


def model_on(store, units=6):
    keras.utils.set_random_seed(1)
    rule, start = kvemb.optimizers.Adam(0.01), kvemb.RandomNormal(0, 0.1, seed=3)
    bag = kk.EmbeddingBag("words", 4, store=store, key_dtype="int32", optimizer=rule, initializer=start)
    layers = [keras.Input((4,), dtype="int32"), bag, keras.layers.Dense(units, activation="relu")]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.2, seed=7), keras.layers.Dense(1)])
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["mae"])
    return model


def fitted(place, name, *, stop=None, every=None, units=6, make=None):
    """Resume and fit to 4 epochs; return the history and the rows. A stopped one is left as by kill -9."""
    with kvemb.CheckpointManager(place / f"{name} series", keep=2) as series:
        store, _ = series.resume(place / name, memory_budget="16MiB")
        model = make(store) if make else model_on(store, units)
        callbacks = [kk.Checkpoint(series, store, every), *([StopAt(*stop)] if stop else [])]
        done = None
        try:
            with suppress(Stopped):
                done = model.fit(IDS, LABELS, batch_size=64, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
        finally:
            rows = store.variables["words"].lookup(np.arange(60, dtype=np.int32))
            store.close(flush=done is not None)
        return done and done.history, rows


def test_an_interrupted_fit_goes_on_where_it_was(tmp_path):
    """Interrupted twice: it goes on at the end of an epoch, then within one."""
    whole, rows = fitted(tmp_path, "whole")
    assert fitted(tmp_path, "run", stop=(1, 1))[0] is None
    assert fitted(tmp_path, "run", stop=(2, 2), every=1e-6)[0] is None
    rest, resumed = fitted(tmp_path, "run")
    assert {each: values[2:] for each, values in whole.items()} == rest
    np.testing.assert_array_equal(resumed, rows)


def test_what_does_not_fit_together_is_refused(tmp_path, open_store, store):
    fitted(tmp_path, "run", stop=(1, 1))
    with pytest.raises(ValueError, match="is of another model"):
        fitted(tmp_path, "run", units=7)
    with kvemb.CheckpointManager(tmp_path / "run series") as series:
        changed, _ = series.resume(tmp_path / "run", memory_budget="16MiB")
        model = model_on(changed)
        changed.variables["words"].upsert(np.array([1], np.int32), np.ones((1, 4), np.float32))
        with changed, pytest.raises(ValueError, match="are not those of the checkpoint"):
            model.fit(IDS, LABELS, verbose=0, callbacks=[kk.Checkpoint(series, changed)])
        with pytest.raises(TypeError, match="store must be a"):
            kk.Checkpoint(series, "run")
    with pytest.raises(TypeError, match="series must be a"):
        kk.Checkpoint("series", store)
    with kvemb.CheckpointManager(tmp_path / "plain") as plain:
        plain.save(store)
        with pytest.raises(ValueError, match=r"was not saved by kvemb\.keras\.Checkpoint"):
            model_on(store).fit(IDS, LABELS, verbose=0, callbacks=[kk.Checkpoint(plain, store)])


def test_an_interrupted_fit_of_a_subclassed_model_goes_on(tmp_path):
    """TensorFlow builds it in its first step only."""

    def make(store):
        rule, start = kvemb.optimizers.Adam(0.01), kvemb.RandomNormal(0, 0.1, seed=3)
        return subclassed(
            kk.EmbeddingBag("words", 4, store=store, key_dtype="int32", optimizer=rule, initializer=start)
        )

    whole, rows = fitted(tmp_path, "whole", make=make)
    assert fitted(tmp_path, "run", stop=(1, 1), make=make)[0] is None
    assert fitted(tmp_path, "run", stop=(2, 2), every=1e-6, make=make)[0] is None
    rest, resumed = fitted(tmp_path, "run", make=make)
    assert {each: values[2:] for each, values in whole.items()} == rest
    np.testing.assert_array_equal(resumed, rows)


def test_a_fit_without_an_epoch_left_restores_the_dense_part_or_says_that_it_cannot(tmp_path):
    """A script that is run again: with TensorFlow, an unbuilt model predicted with new weights."""
    with kvemb.CheckpointManager(tmp_path / "series") as series:
        store, _ = series.resume(tmp_path / "store", memory_budget="16MiB")
        rule = kvemb.optimizers.SGD(0.1)
        words = store.get_variable("words", dim=4, key_dtype="int32", optimizer=rule)

        def fit(model):
            model.fit(IDS, LABELS, batch_size=64, epochs=1, verbose=0, callbacks=[kk.Checkpoint(series, store)])
            return model.predict(IDS, verbose=0)

        expected = fit(subclassed(kk.EmbeddingBag(words)))
        again = subclassed(kk.EmbeddingBag(words))
        if keras.backend.backend() == "tensorflow":
            with pytest.raises(ValueError, match="so the model was not built"):
                fit(again)
            again(IDS[:1])
        np.testing.assert_array_equal(fit(again), expected)
        store.close()


def test_the_best_epoch_alone_is_saved_with_its_rows(tmp_path):
    """The loss is made to rise after the second epoch, and the next process goes back to it."""

    class Rises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["given"] = [3.0, 1.0, 2.0, 1.5][epoch]

    kept = {}
    with kvemb.CheckpointManager(tmp_path / "series") as series:
        store, _ = series.resume(tmp_path / "store", memory_budget="16MiB")
        callback = kk.Checkpoint(series, store, monitor="given", save_best_only=True)
        model = model_on(store)

        class Keep(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                kept[epoch] = self.model.predict(IDS, verbose=0)

        with store:
            callbacks = [Rises(), callback, Keep()]
            model.fit(IDS, LABELS, epochs=4, shuffle=False, verbose=0, callbacks=callbacks)
            again = kk.Checkpoint(series, store, save_best_only=True)
            with pytest.raises(ValueError, match="the logs of an epoch have no 'val_loss'; there are"):
                again._save_after(0, {"loss": 1.0, "mae": 1.0})
        best, _ = series.resume(tmp_path / "store", memory_budget="16MiB")
        with best:
            model = model_on(best)
            again = kk.Checkpoint(series, best, monitor="given", save_best_only=True)
            model.fit(IDS, LABELS, epochs=2, shuffle=False, verbose=0, callbacks=[Rises(), again])
            np.testing.assert_array_equal(model.predict(IDS, verbose=0), kept[1])
        with pytest.raises(ValueError, match="leave out every"):
            kk.Checkpoint(series, best, 5.0, save_best_only=True)
