"""Rows as tensors of TensorFlow, eagerly and in tf.function.

tf.numpy_function is stateful: tf.function neither prunes nor merges its calls, and runs each once. Its calls are of
this process: in a saved graph, their names would be those of other functions. So what they read from a variable that is
in no model makes TensorFlow refuse to save a graph.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from kvemb.keras.exporting import check_not_exported
from kvemb.keras.gates import Gate, gates_of, tapped
from kvemb.keras.layer_call import Call
from kvemb.keras.raised import told
from kvemb.keras.requests import Ids, Request, in_parts, shape_of
from kvemb.keras.requests import look_up as host_look_up
from kvemb.keras.steps import begin, collect, seal, take
from kvemb.variable import Variable


def take_step(variable: Variable, token: Any) -> None:
    """Take the step of an anchor's gradient."""

    def step(token: Any) -> np.float32:
        take(variable, float(token))
        return np.float32(0)

    _on_host(step, [tf.convert_to_tensor(token)], tf.float32)


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    if not tf.executing_eagerly():
        check_not_exported()
        _warn_of_functions()
    if call.anchors and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise RuntimeError("kvemb.keras trains in one replica, but this tf.distribute.Strategy has several")
    seen = {variable: tf.convert_to_tensor(anchor.value) for variable, anchor in call.anchors.items()}
    # No others than those whose anchors a gradient tape has seen can be trained.
    watched = {variable: anchor for variable, anchor in seen.items() if record.should_record_backprop([anchor])}
    gates = gates_of(watched, _is_usable, lambda variables, anchors: _enter(variables, anchors, _scale(call)))
    batch = tuple(map(_dense, call.batch))
    return tapped(call, batch, _host_rows(call, batch, [gate.value for gate in gates.values()]), gates, _tap)


def _warn_of_functions() -> None:
    """Warn of a layer whose call is a tf.function around this one. Reads the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        kind: Any = type(frame.f_locals.get("self"))
        if issubclass(kind, keras.layers.Layer) and isinstance(kind.call, tf.types.experimental.PolymorphicFunction):
            warnings.warn(
                f"{kind.__name__}.call is a tf.function, which TensorFlow traces when Keras builds the model: "
                "training=True and gradients may not reach what is inside. Leave out @tf.function; fit and predict "
                "compile the whole step",
                stacklevel=2,
            )
            return
        frame = frame.f_back


def _is_usable(gate: Gate, _: Any) -> bool:
    """Whether the gate is of this batch: an open tape has it, and its graph is this one, or around this one."""
    if not record.should_record_backprop([gate.value]):
        return False
    if tf.executing_eagerly():
        return not tf.is_symbolic_tensor(gate.value)
    if not tf.is_symbolic_tensor(gate.value):
        return True
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not gate.value.graph:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _scale(call: Call) -> Any:
    one = tf.ones((), tf.float32)
    return one if call.optimizer is None else tf.cast(call.optimizer.scale_loss(one), tf.float32)


def _enter(variables: tuple[Variable, ...], anchors: list[Any], scale: Any) -> list[Gate]:
    """Begin a batch, and return its gates."""

    def new_number(*values: Any) -> np.int64:
        return np.int64(begin(variables, values))

    def token(number: Any, scale: Any, *_: Any) -> np.float32:
        return np.float32(seal(variables, int(number), float(scale)))

    @tf.custom_gradient
    def enter(*given: Any) -> Any:
        number = _on_host(new_number, given, tf.int64)

        def backward(*grads: Any) -> Any:
            floats = [grad for grad in grads[: len(given)] if grad is not None]
            return [_on_host(token, [number, scale, *floats], tf.float32)] * len(given)

        return [*(tf.identity(each) for each in given), number], backward

    *values, number = enter(*anchors)
    return [Gate(value, number) for value in values]


def _dense(ids: Ids) -> Ids:
    """Return ids whose fields are dense tensors."""
    if isinstance(ids.ids, tf.RaggedTensor):
        return Ids(ids.ids.values, None, ids.ids.row_splits)
    return ids


def _host_rows(call: Call, batch: tuple[Ids, ...], gates: list[Any]) -> list[Any]:
    given = [each for ids in batch for each in ids.given]

    def read(*arrays: Any) -> list[Any]:
        return host_look_up(call.requests, in_parts(batch, arrays), touch=call.touch)

    dtypes = [tf.as_dtype(request.dtype) for request in call.requests]
    found: list[Any] = _on_host(read, [*given, *gates], dtypes)
    for rows, request, ids in zip(found, call.requests, batch, strict=True):
        rows.set_shape(shape_of(request, ids))
    return found


def _tap(request: Request, ids: Ids, gate: Gate, rows: Any) -> Any:
    """Return rows whose gradients are handed over."""
    eager = tf.executing_eagerly()

    def take_in(number: Any, grads: Any, *arrays: Any) -> np.float32:
        collect(request, int(number), ids.like(arrays), grads, copy=eager)
        return np.float32(0)

    @tf.custom_gradient
    def tap(value: Any, rows: Any) -> Any:
        def backward(grads: Any) -> Any:
            given = [gate.number, tf.convert_to_tensor(grads), *ids.given]
            return _on_host(take_in, given, tf.float32), None

        return tf.identity(rows), backward

    return tap(gate.value, rows)


def _on_host(call: Callable[..., Any], given: Sequence[Any], dtypes: Any) -> Any:
    """Return what a function of arrays returns, a scalar or a list of arrays, as tensors.

    dtypes: of the scalar, or a list. Eagerly, errors are the function's own.
    """
    if tf.executing_eagerly():
        found = call(*(each.numpy() for each in given))
        return list(map(tf.convert_to_tensor, found)) if isinstance(dtypes, list) else tf.constant(found, dtypes)
    hosted = told(lambda *arrays: call(*arrays[:-1]))
    found = tf.numpy_function(hosted, [*given, _unsavable().read_value()], dtypes)
    if isinstance(dtypes, list):
        return [found] if tf.is_tensor(found) else list(found)
    found.set_shape(())
    return found


@cache
def _unsavable() -> Any:
    """Return a variable that no model has, so that TensorFlow refuses to save a graph which reads it."""
    with tf.init_scope():
        return tf.Variable(0, trainable=False, name="rows_of_kvemb_cannot_be_exported")
