"""Gates, by which the backward pass of a batch ends with one step, in TensorFlow and in JAX.

    anchors ─ gates ─ lookup        forward: a batch begins, rows are looked up
                 └─── taps ─ rows   backward: each tap hands over a gradient, then the gates take the step

Gates are identities of the anchors, made once for a batch and variable, so a gate's gradient is the sum over all layers
on the variable: its backward pass runs after those of all taps. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from kvemb.keras.layer_call import Call
from kvemb.keras.requests import Ids, Request
from kvemb.variable import Variable


class Gate(NamedTuple):
    """The identity of an anchor in a batch, float32 (), and the batch's number, an integer ().

    anchor: what the backend needs to recognize the anchor's value, if anything.
    """

    value: Any
    number: Any
    anchor: Any = None


class _Open(threading.local):
    """The gates that this thread made last."""

    def __init__(self) -> None:
        self.gates: dict[Variable, Gate] = {}


_open = _Open()


def gates_of(
    anchors: dict[Variable, Any],
    usable: Callable[[Gate, Any], bool],
    enter: Callable[[tuple[Variable, ...], list[Any]], list[Gate]],
) -> dict[Variable, Gate]:
    """Return a gate for each variable. anchors: the anchors' values, as this batch has them.

    usable: whether a gate that was made before is of this batch. enter: begins a batch, and makes gates for it.
    """
    known = _open.gates
    new = {each: anchor for each, anchor in anchors.items() if each not in known or not usable(known[each], anchor)}
    if new:
        made = dict(zip(new, enter(tuple(new), list(new.values())), strict=True))
        _open.gates = made if len(new) == len(anchors) else known | made  # the others are of an earlier batch
    return {variable: _open.gates[variable] for variable in anchors}


def tapped(
    call: Call,
    batch: tuple[Ids, ...],
    rows: list[Any],
    gates: dict[Variable, Gate],
    tap: Callable[[Request, Ids, Gate, Any], Any],
) -> list[Any]:
    """Return the rows of each request; with a tap, if its variable has a gate."""
    return [
        tap(request, ids, gates[request.variable], each) if request.variable in gates else each
        for request, ids, each in zip(call.requests, batch, rows, strict=True)
    ]
