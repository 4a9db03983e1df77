"""Rows as arrays of JAX, eagerly and in jax.jit.

    anchors ─ gates ─ lookup        forward: a batch begins, rows are looked up
                 └─── taps ─ rows   backward: each tap hands over a gradient, then the gates take the step

Gates are identities of the anchors, made once for a trace and variable, so a gate's cotangent is the sum over all
layers on the variable: its backward pass runs after those of all taps. Only a differentiated function begins a batch.
What changes the store, or records a use, is an ordered io_callback, which JAX runs exactly once. What only reads is a
pure_callback, which JAX may repeat or leave out.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import io_callback

from kvemb.keras.calls import Call
from kvemb.keras.requests import Array, Ids, Request, in_parts, shape_of
from kvemb.keras.requests import look_up as host_look_up
from kvemb.keras.steps import begin, collect, finish, told
from kvemb.variable import Variable

_shaped: Any = jax.ShapeDtypeStruct
_SCALAR = _shaped((), np.float32)


class Gate(NamedTuple):
    """The identity of an anchor in a batch, float32 (), and the batch's number, int32 ()."""

    value: Any
    number: Any


class _Open(threading.local):
    """The gates that this thread made last, each with a weak reference to its anchor's value."""

    def __init__(self) -> None:
        self.gates: dict[Variable, tuple[weakref.ref[Any], Gate]] = {}


_open = _Open()


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    if call.anchors and jax.process_count() > 1:
        raise RuntimeError("kvemb.keras trains in one process, but jax.distributed has several")
    gates = _gates(call)
    found = _host_rows(call, [jax.lax.stop_gradient(gate.value) for gate in gates.values()])
    return [
        _tap(request, ids, gates[request.variable], rows) if request.variable in gates else rows
        for request, ids, rows in zip(call.requests, call.batch, found, strict=True)
    ]


def _gates(call: Call) -> dict[Variable, Gate]:
    """Return the gates of the variables whose anchors are traced; no others can be trained."""
    values = {variable: anchor.value for variable, anchor in call.anchors.items()}
    traced = {variable: value for variable, value in values.items() if isinstance(value, jax.core.Tracer)}
    new = {variable: value for variable, value in traced.items() if _gate_of(variable, value) is None}
    if new:
        made = _enter(tuple(new), list(new.values()), half=call.half)
        call.add_loss(made[0].value)  # which is 0: so that the first gate's cotangent is the scale of the loss
        if len(new) == len(traced):
            _open.gates = {}  # of an earlier trace
        for (variable, value), gate in zip(new.items(), made, strict=True):
            _open.gates[variable] = weakref.ref(value), gate
    return {variable: _open.gates[variable][1] for variable in traced}


def _gate_of(variable: Variable, anchor: Any) -> Gate | None:
    """Return the gate of this trace, in which every layer sees the same object as the anchor's value."""
    value, gate = _open.gates.get(variable, (None, None))
    return gate if value is not None and value() is anchor else None


def _enter(variables: tuple[Variable, ...], anchors: list[Any], *, half: bool) -> list[Gate]:
    """Begin a batch, and return its gates."""

    def new_number() -> np.int32:
        return np.int32(begin())

    def step(number: Any, factors: list[Any]) -> np.float32:
        return np.float32(0.0 if finish(variables, int(number), _scale(float(factors[0]), half)) else np.nan)

    @jax.custom_vjp
    def enter(given: list[Any]) -> Any:
        return given, np.int32(0)

    def forward(given: list[Any]) -> Any:
        number = io_callback(told(new_number), _shaped((), np.int32), ordered=True)
        return (given, number), number

    def backward(number: Any, cotangents: Any) -> Any:
        grads, _ = cotangents
        done = io_callback(told(step), _SCALAR, number, grads, ordered=True)
        return ([done] * len(grads),)

    enter.defvjp(forward, backward)
    values, number = enter(anchors)
    return [Gate(value, number) for value in values]


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

    def take(number: Any, grads: Any, arrays: list[Any]) -> np.float32:
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
        return io_callback(told(take), _SCALAR, number, grads, given, ordered=True), None, None, None

    tap.defvjp(forward, backward)
    return tap(gate.value, rows, gate.number, ids.given)
