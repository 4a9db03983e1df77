"""Rows as arrays of JAX, eagerly and in jax.jit.

Gates (kvemb.keras.gates) are made once for a trace. Only a differentiated function begins a batch.
What changes the store, or records a use, is an ordered io_callback, which JAX runs exactly once. What only reads is a
pure_callback, which JAX may repeat or leave out.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from kvemb.keras.exporting import check_not_exported
from kvemb.keras.gates import Gate, gates_of, tapped
from kvemb.keras.layer_call import Call
from kvemb.keras.raised import told
from kvemb.keras.requests import Array, Ids, Request, in_parts, shape_of
from kvemb.keras.requests import look_up as host_look_up
from kvemb.keras.steps import begin, collect, seal, take
from kvemb.variable import Variable

_shaped: Any = jax.ShapeDtypeStruct
_SCALAR = _shaped((), np.float32)


def take_step(variable: Variable, token: Any) -> None:
    """Take the step of an anchor's gradient."""

    def step(token: Any) -> np.float32:
        take(variable, float(token))
        return np.float32(0)

    if _is_traced(token):
        io_callback(told(step), _SCALAR, token, ordered=True)
    elif not token.is_deleted():  # after a step that failed, fit assigns the arrays that the step was given
        step(token)


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    if any(_is_traced(each) for ids in call.batch for each in ids.given):
        check_not_exported()
    if call.anchors and jax.process_count() > 1:
        raise RuntimeError("kvemb.keras trains in one process, but jax.distributed has several")
    # No others than those whose anchors are traced can be trained.
    traced = {variable: anchor.value for variable, anchor in call.anchors.items() if _is_traced(anchor.value)}
    gates = gates_of(traced, _is_of, lambda variables, anchors: _enter(call, variables, anchors))
    found = _host_rows(call, [jax.lax.stop_gradient(gate.value) for gate in gates.values()])
    return tapped(call, call.batch, found, gates, _tap)


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _is_of(gate: Gate, anchor: Any) -> bool:
    """Whether a gate is of this trace, in which every layer sees the same object as the anchor's value."""
    return gate.anchor() is anchor


def _enter(call: Call, variables: tuple[Variable, ...], anchors: list[Any]) -> list[Gate]:
    """Begin a batch, and return its gates."""
    half = call.half  # what is compiled keeps no arrays of the call

    def new_number(values: list[Any]) -> np.int32:
        return np.int32(begin(variables, list(map(float, values))))

    def token(number: Any, factors: list[Any]) -> np.float32:
        return np.float32(seal(variables, int(number), _scale(float(factors[0]), half)))

    @jax.custom_vjp
    def enter(given: list[Any]) -> Any:
        return given, np.int32(0)

    def forward(given: list[Any]) -> Any:
        number = io_callback(told(new_number), _shaped((), np.int32), given, ordered=True)
        return (given, number), number

    def backward(number: Any, cotangents: Any) -> Any:
        grads, _ = cotangents
        done = io_callback(told(token), _SCALAR, number, grads, ordered=True)
        return ([done] * len(grads),)

    enter.defvjp(forward, backward)
    values, number = enter(anchors)
    call.add_loss(values[0])  # which is 0: so that the first gate's cotangent is the scale of the loss
    return [Gate(value, number, weakref.ref(anchor)) for value, anchor in zip(values, anchors, strict=True)]


def _scale(factor: float, half: bool) -> float:
    """Return by what the loss was scaled. factor: by what a loss that a layer adds was multiplied; 0: it was not used.

    Raises ValueError if that is not known.
    """
    if half and factor == 0:
        raise ValueError(
            "under mixed_float16 the loss must contain the model's losses, by which kvemb.keras knows its scale; add "
            "sum(model.losses) to it"
        )
    if not half and factor > 1:
        raise ValueError(
            f"the loss is multiplied by {factor:g}. With JAX, kvemb.keras knows a scaled loss by the policy "
            "mixed_float16 alone: set it, or use an optimizer without loss_scale_factor and LossScaleOptimizer"
        )
    return factor if half else 1.0


def _host_rows(call: Call, gates: list[Any]) -> list[Any]:
    given = [each for ids in call.batch for each in ids.given]

    def read(arrays: list[Any], _: Any) -> tuple[Array, ...]:
        parts = in_parts(call.batch, [np.asarray(array) for array in arrays])
        return tuple(host_look_up(call.requests, parts, touch=call.touch))

    shapes = tuple(
        _shaped(shape_of(request, ids), np.dtype(request.dtype))
        for request, ids in zip(call.requests, call.batch, strict=True)
    )
    if call.touch:
        return list(io_callback(told(read), shapes, given, gates, ordered=True))
    return list(jax.pure_callback(told(read), shapes, given, gates))


def _tap(request: Request, ids: Ids, gate: Gate, rows: Any) -> Any:
    """Return rows whose gradients are handed over."""

    def take_in(number: Any, grads: Any, arrays: list[Any]) -> np.float32:
        given = ids.like([np.asarray(array) for array in arrays])
        collect(request, int(number), given, np.asarray(grads), copy=True)
        return np.float32(0)

    @jax.custom_vjp
    def tap(value: Any, rows: Any, number: Any, given: list[Any]) -> Any:
        return rows

    def forward(value: Any, rows: Any, number: Any, given: list[Any]) -> Any:
        return rows, (number, given)

    def backward(residuals: Any, grads: Any) -> Any:
        number, given = residuals
        return io_callback(told(take_in), _SCALAR, number, grads, given, ordered=True), None, None, None

    tap.defvjp(forward, backward)
    return tap(gate.value, rows, gate.number, ids.given)
