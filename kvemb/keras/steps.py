"""The gradients of rows, from a backward pass until an optimizer of Keras takes the step with them.

    begin ─ look up ─ collect (each layer) ─ seal (the pass ends) ─ take (the optimizer has the anchor's gradient)

A batch gets a number when its rows are looked up. In a backward pass each layer hands over its gradients under that
number, and seal() closes them under a token, which is the gradient of the variables' anchors. take() takes the step.
So rows change if the optimizer gets the gradient of their anchor, and with that pass alone: a gradient that is only
looked at changes nothing. What nobody takes is dropped. Thread-safe.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from kvemb.frameworks.store_calls import apply_gradients
from kvemb.keras.requests import Array, Ids, Request, gradients
from kvemb.keras.rows_state import count_step
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable

# Batches, and passes, whose gradients wait, for each variable: the oldest are dropped.
MAX_WAITING = 8
_MAX_NUMBER = 2**31 - 1
# Tokens are float32 that do not change a norm which they join. Scaled ones, and sums of two, are not tokens.
_TOKENS = 2**22
_UNIT = 2.0**-100

Gradients = list[tuple[Array, Array]]


class Step(NamedTuple):
    """A step on the rows of one variable. keys: of the rows, or some of them. run: takes it; None: nothing to do."""

    keys: Any
    run: Callable[[], None] | None


_lock = threading.Lock()
_numbers = count(1)
_waiting: WeakKeyDictionary[Variable, dict[int, Gradients]] = WeakKeyDictionary()
_sealed: WeakKeyDictionary[Variable, dict[float, Step]] = WeakKeyDictionary()
_tokens = random.Random()  # of its own: users' seeds stay as they are


def begin(variables: Sequence[Variable], anchors: Sequence[float]) -> int:
    """Return the number of a new batch, from 1; it fits int32. anchors: the anchors' values. Raises ValueError."""
    for variable, value in zip(variables, anchors, strict=True):
        if value != 0:
            raise ValueError(
                f"an optimizer that is not one of Keras changed the scalar that stands for the rows of "
                f"{variable.name!r}, and trained no rows; give it what kvemb.keras.take_step returns, and set the "
                f"scalar, layer.variables, to 0"
            )
    return next(_numbers) % _MAX_NUMBER


def collect(request: Request, number: int, given: Ids, grads: Array, *, copy: bool) -> None:
    """Keep the gradients of what was looked up until seal(). copy: whether the arrays are the backend's memory."""
    keys, values = gradients(request, given, grads)
    if copy:
        keys, values = _own(keys, [given.ids]), _own(values, [grads])
    with uninterrupted(), _lock:
        _kept(_waiting.setdefault(request.variable, {}), number, []).append((keys, values))


def seal(variables: Sequence[Variable], number: int, scale: float) -> float:
    """Close what a pass has collected for variables, and return its token, the gradient of their anchors.

    scale: by what the gradients were multiplied, as LossScaleOptimizer does; if they are not finite, the token is NaN.
    """
    with uninterrupted(), _lock:
        found = {variable: _waiting.get(variable, {}).pop(number, []) for variable in variables}
    if scale != 1.0:
        if not (np.isfinite(scale) and all(np.isfinite(each).all() for parts in found.values() for _, each in parts)):
            return math.nan
        found = {variable: [(keys, each / scale) for keys, each in parts] for variable, parts in found.items()}

    token = new_token()
    keep(token, {variable: _step(variable, parts) for variable, parts in found.items()})
    return token


def _step(variable: Variable, parts: Gradients) -> Step:
    if not parts:
        return Step((), None)
    keys, values = _joined(parts)
    return Step(keys, lambda: apply_gradients([(variable, keys, values)]))


def new_token() -> float:
    """Return the token of a backward pass."""
    return _tokens.randrange(1, _TOKENS) * _UNIT


def keep(token: float, steps: Mapping[Variable, Step]) -> None:
    """Keep the steps of a backward pass until take()."""
    with uninterrupted(), _lock:
        for variable, step in steps.items():
            _kept(_sealed.setdefault(variable, {}), token, step)


def take(variable: Variable, token: float) -> None:
    """Take one step on a variable's rows, with the gradients of the pass of a token. Equal keys are summed first.

    0 stands for no gradient, and NaN for one that overflowed: then nothing changes. Raises ValueError for a token that
    is not of a pass of this variable, and what Store.apply_gradients raises.
    """
    if token == 0 or math.isnan(token):
        return
    with uninterrupted(), _lock:
        step = _sealed.get(variable, {}).pop(token, None)
    if step is None:
        raise ValueError(
            f"the gradient of the rows of {variable.name!r} is not what a backward pass gave: it was scaled, clipped "
            f"or added to another one, a step was taken with it before, or {MAX_WAITING} passes came later. Clip and "
            "scale other gradients alone, give the variable's optimizer clip_norm, and take a step for each pass"
        )
    if step.run is not None:
        step.run()
        count_step(variable, step.keys)


Key = TypeVar("Key")
Value = TypeVar("Value")


def _kept(waiting: dict[Key, Value], key: Key, new: Value) -> Value:
    """Return the value of a key, a new one if it has none; the oldest keys go."""
    value = waiting.setdefault(key, new)
    while len(waiting) > MAX_WAITING:
        del waiting[next(iter(waiting))]
    return value


def _own(array: Array, givens: list[Array]) -> Array:
    return array.copy() if any(np.may_share_memory(array, given) for given in givens) else array


def _joined(found: Gradients) -> tuple[Array, Array]:
    if len(found) == 1:
        return found[0]
    keys, values = zip(*found, strict=True)
    return np.concatenate(keys), np.concatenate(values)
