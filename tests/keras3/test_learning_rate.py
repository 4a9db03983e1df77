"""LearningRate: schedules, the model's optimizer, and refusals."""

from __future__ import annotations

import keras
import pytest
from keras_models import classifier, losses

import kvemb.keras as kk
from kvemb.frameworks.rates import rate_of


def test_a_schedule_or_the_models_optimizer_sets_the_rate_of_rows(words, clicks):
    model = classifier(kk.Embedding(words))
    seen = []

    class See(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(rate_of(words.optimizer))

    losses(model, clicks, epochs=1, callbacks=[kk.LearningRate(lambda step: 1 / (1 + step)), See()])
    assert seen == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    decay = keras.optimizers.schedules.ExponentialDecay(0.5, 4, 0.5)
    losses(model, clicks, epochs=1, callbacks=[kk.LearningRate(decay), See()])
    assert seen[4:] == pytest.approx([0.5 * 0.5 ** (1 + step / 4) for step in range(4)])
    model.optimizer.learning_rate = 0.25
    losses(model, clicks, epochs=1, callbacks=[kk.LearningRate(scale=2), See()])
    assert seen[8:] == [0.5] * 4


def test_what_cannot_be_a_rate_is_said(words, clicks):
    model = classifier(kk.Embedding(words))
    with pytest.raises(ValueError, match="learning_rate must be finite and at least 0"):
        losses(model, clicks, callbacks=[kk.LearningRate(lambda step: -1.0)])
    with pytest.raises(TypeError, match="schedule must be a function of the step"):
        kk.LearningRate(0.1)
    with pytest.raises(ValueError, match=r"no trained layer of kvemb\.keras"):
        losses(classifier(keras.layers.Embedding(100, 4)), clicks, callbacks=[kk.LearningRate()])
