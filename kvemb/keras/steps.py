"""The optimizer's steps of layers: gradients wait until a backward pass has given all of a variable's, then one step.

A batch gets a number when its rows are looked up. Each layer hands over its gradients under that number, and when all
have come, finish() takes the step. What a batch that failed has left behind is never used: its number does not return.
Thread-safe.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from kvemb.frameworks.store_calls import apply_gradients
from kvemb.keras.requests import Array, Ids, Request, gradients
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable

# Batches whose gradients wait, for each variable: more have failed, and the oldest are dropped.
MAX_WAITING = 8
_MAX_NUMBER = 2**31 - 1

_lock = threading.Lock()
_numbers = count(1)
_waiting: WeakKeyDictionary[Variable, dict[int, list[tuple[Array, Array]]]] = WeakKeyDictionary()
_logger = logging.getLogger("kvemb")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def begin() -> int:
    """Return the number of a new batch, from 1; it fits int32."""
    return next(_numbers) % _MAX_NUMBER


def collect(request: Request, number: int, given: Ids, grads: Array, *, copy: bool) -> None:
    """Keep the gradients of what was looked up until finish(). copy: whether the arrays are the backend's memory."""
    keys, values = gradients(request, given, grads)
    if copy:
        keys, values = _own(keys, [given.ids]), _own(values, [grads])
    with uninterrupted(), _lock:
        batches = _waiting.setdefault(request.variable, {})
        batches.setdefault(number, []).append((keys, values))
        while len(batches) > MAX_WAITING:
            del batches[min(batches)]


def finish(variables: Sequence[Variable], number: int, scale: float) -> bool:
    """Take one step on the rows of each variable that got gradients under this number. Equal keys are summed first.

    scale: by what the gradients were multiplied, as LossScaleOptimizer does. Returns whether the step was taken; if the
    scaled gradients are not finite, it is not.
    """
    wanted: list[tuple[Variable, Array, Array]] = []
    for variable in variables:
        with uninterrupted(), _lock:
            found = _waiting.get(variable, {}).pop(number, [])
        if found:
            wanted.append((variable, *_joined(found)))
    if scale != 1.0:
        if not (np.isfinite(scale) and all(np.isfinite(values).all() for *_, values in wanted)):
            return False
        wanted = [(variable, keys, values / scale) for variable, keys, values in wanted]
    apply_gradients(wanted)
    return True


def told(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function for a backend's thread, which logs an error that the backend would hide in its own."""

    def logged(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            _logger.error("%s: %s", type(error).__name__, error)
            raise

    return logged


def _own(array: Array, givens: list[Array]) -> Array:
    return array.copy() if any(np.may_share_memory(array, given) for given in givens) else array


def _joined(found: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    if len(found) == 1:
        return found[0]
    keys, values = zip(*found, strict=True)
    return np.concatenate(keys), np.concatenate(values)
