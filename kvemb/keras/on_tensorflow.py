"""Rows as tensors of TensorFlow, eagerly and in tf.function.

tf.numpy_function is stateful: tf.function neither prunes nor merges its calls, and runs each once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from kvemb.keras.calls import Call
from kvemb.keras.gates import Gate, gates_of, tapped
from kvemb.keras.requests import Ids, Request, in_parts, shape_of
from kvemb.keras.requests import look_up as host_look_up
from kvemb.keras.steps import begin, collect, finish, told
from kvemb.variable import Variable


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    if call.anchors and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise RuntimeError("kvemb.keras trains in one replica, but this tf.distribute.Strategy has several")
    seen = {variable: tf.convert_to_tensor(anchor.value) for variable, anchor in call.anchors.items()}
    # No others than those whose anchors a gradient tape has seen can be trained.
    watched = {variable: anchor for variable, anchor in seen.items() if record.should_record_backprop([anchor])}
    gates = gates_of(watched, _is_usable, lambda variables, anchors: _enter(variables, anchors, _scale(call)))
    batch = tuple(map(_dense, call.batch))
    return tapped(call, batch, _host_rows(call, batch, [gate.value for gate in gates.values()]), gates, _tap)


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

    def step(number: Any, scale: Any, *_: Any) -> np.float32:
        return np.float32(0.0 if finish(variables, int(number), float(scale)) else np.nan)

    @tf.custom_gradient
    def enter(*given: Any) -> Any:
        number = tf.numpy_function(told(lambda: np.int64(begin())), [], tf.int64)
        number.set_shape(())

        def backward(*grads: Any) -> Any:
            floats = [grad for grad in grads[: len(given)] if grad is not None]
            done = tf.numpy_function(told(step), [number, scale, *floats], tf.float32)
            done.set_shape(())
            return [done] * len(given)

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
    found = tf.numpy_function(told(read), [*given, *gates], dtypes)
    found = [found] if tf.is_tensor(found) else list(found)  # eagerly, a list of one is that one
    for rows, request, ids in zip(found, call.requests, batch, strict=True):
        rows.set_shape(shape_of(request, ids))
    return found


def _tap(request: Request, ids: Ids, gate: Gate, rows: Any) -> Any:
    """Return rows whose gradients are handed over."""

    def take(number: Any, grads: Any, *arrays: Any) -> np.float32:
        collect(request, int(number), ids.like(arrays), grads, copy=False)
        return np.float32(0)

    @tf.custom_gradient
    def tap(value: Any, rows: Any) -> Any:
        def backward(grads: Any) -> Any:
            given = [gate.number, tf.convert_to_tensor(grads), *ids.given]
            taken = tf.numpy_function(told(take), given, tf.float32)
            taken.set_shape(())
            return taken, None

        return tf.identity(rows), backward

    return tap(gate.value, rows)
