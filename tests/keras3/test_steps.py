"""Rows take a step when an optimizer gets the gradient of a pass, and from no gradient that is only looked at."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_models import classifier

import kvemb
import kvemb.keras as kk

BACKEND = keras.backend.backend()
IDS = np.array([[1, 2, 3], [500, 2, 1]], np.int32)


def tensor(array):
    return keras.ops.convert_to_tensor(array)


def gradients(model, variables, *, training, times=1):
    """The gradients of the sum of a model's results, as the backend gives them; of the last of some passes."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as tape:
            out = keras.ops.sum(model(tensor(IDS), training=training))
        return [tape.gradient(out, [each.value for each in variables]) for _ in range(times)][-1]
    if BACKEND == "torch":
        for _ in range(times):
            model.zero_grad()
            keras.ops.sum(model(tensor(IDS), training=training)).backward()
        return [each.value.grad for each in variables]
    import jax

    trained, rest = model.trainable_variables, [each.value for each in model.non_trainable_variables]
    chosen = [any(each is other for other in variables) for each in trained]

    def out(values):
        given = iter(values)
        whole = [next(given) if wanted else each.value for each, wanted in zip(trained, chosen, strict=True)]
        return keras.ops.sum(model.stateless_call(whole, rest, tensor(IDS), training=training)[0])

    values = [each.value for each, wanted in zip(trained, chosen, strict=True) if wanted]
    return [jax.grad(out)(values) for _ in range(times)][-1]


def test_a_gradient_that_no_optimizer_gets_changes_nothing(words):
    model = classifier(kk.Embedding(words), kk.EmbeddingBag(words, combiner="mean"))
    before = words.export()
    for training in (False, True):
        gradients(model, model.trainable_variables, training=training, times=2)
        gradients(model, model.layers[-1].trainable_variables, training=training)
    for left, right in zip(before, words.export(), strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_optimizer_takes_the_step_of_its_pass_once(words):
    """With SGD(0.5) and a gradient of 1, each occurrence moves an element by half: other passes do not count."""
    model = keras.Sequential([keras.Input((3,), dtype="int32"), kk.EmbeddingBag(words, combiner="sum")])
    optimizer, before = keras.optimizers.Adam(0.1), words.lookup([1, 2, 3, 500])
    found = gradients(model, model.trainable_variables, training=True, times=2)
    found = [keras.ops.copy(each) for each in found]
    gradients(model, model.trainable_variables, training=False)
    optimizer.apply(found, model.trainable_variables)
    moved = np.array([[1.0], [1.0], [0.5], [0.5]])
    np.testing.assert_allclose(before - words.lookup([1, 2, 3, 500]), np.broadcast_to(moved, (4, 4)), atol=1e-6)
    with pytest.raises(ValueError, match="the gradient of the rows of 'words' is not what a backward pass gave"):
        optimizer.apply(found, model.trainable_variables)
    found = [each * 2.0 for each in gradients(model, model.trainable_variables, training=True)]
    with pytest.raises(ValueError, match="it was scaled, clipped or added"):
        optimizer.apply(found, model.trainable_variables)


def test_a_loop_with_another_optimizer_declares_its_step(words):
    model = classifier(kk.Embedding(words))
    before = words.lookup([1, 2, 3])
    found = gradients(model, model.trainable_variables, training=True)
    dense, variables = kk.take_step(found, model.trainable_variables)
    assert len(dense) == len(variables) == len(model.trainable_variables) - 1
    assert (words.lookup([1, 2, 3]) != before).all()
    anchor = next(each for each in model.trainable_variables if all(each is not other for other in variables))
    anchor._direct_assign(keras.ops.ones(()))
    with pytest.raises(Exception, match=r"an optimizer that is not one of Keras changed the scalar"):
        gradients(model, model.trainable_variables, training=True)
    anchor._direct_assign(keras.ops.zeros(()))


def test_what_an_optimizer_would_do_with_weights_alone_is_refused(words, clicks):
    for arguments in ({"gradient_accumulation_steps": 2}, {"use_ema": True}):
        optimizer = keras.optimizers.SGD(0.1, **arguments)
        model = classifier(kk.Embedding(words), optimizer=optimizer)
        with pytest.raises(ValueError, match=f"{next(iter(arguments))}.*cannot be done with rows"):
            model.train_on_batch(*(each[:9] for each in clicks))


def test_averages_are_refused_in_fit_and_jax_has_it_in_the_log(words, clicks, caplog):
    """With JAX, Keras' fit ends in an error of its own, 'NoneType' object is not callable."""
    model = classifier(kk.Embedding(words), optimizer=keras.optimizers.Adam(use_ema=True))
    with pytest.raises((ValueError, TypeError)) as raised:
        model.fit(*clicks, verbose=0)
    text = caplog.text if keras.backend.backend() == "jax" else str(raised.value)
    assert "use_ema=True, which cannot be done with rows" in text


def test_the_oldest_passes_are_dropped(store):
    from kvemb.keras.steps import MAX_WAITING, Step, keep, new_token, take

    words = store.get_variable("words", dim=1, optimizer=kvemb.optimizers.SGD(0.5))
    done = []
    tokens = [new_token() for _ in range(MAX_WAITING + 1)]
    for token in tokens:
        keep(token, {words: Step((), lambda token=token: done.append(token))})
    take(words, tokens[-1])
    take(words, 0.0)
    take(words, float("nan"))
    with pytest.raises(ValueError, match="passes came later"):
        take(words, tokens[0])
    assert done == [tokens[-1]]
