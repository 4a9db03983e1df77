"""A call of a layer, as the modules of the backends take it, and the choice of that module."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import keras

from kvemb.keras.requests import Ids, Request
from kvemb.variable import Variable


class Call(NamedTuple):
    """A call of a layer.

    requests and batch: what is looked up, one Ids of tensors for each request. anchors: of the variables that are
    trained. touch: whether uses of rows are recorded. optimizer: the one of the model that is trained if it scales the
    loss, otherwise None; with JAX the model is not known, and `half` says whether the policy is mixed_float16, under
    which Keras scales the loss. add_loss: the layer's.
    """

    requests: tuple[Request, ...]
    batch: tuple[Ids, ...]
    anchors: dict[Variable, keras.Variable]
    touch: bool
    optimizer: Any
    half: bool
    add_loss: Callable[[Any], None]


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request as a tensor of the backend, which passes gradients on to the rows."""
    return list(backend_module().look_up(call))


def backend_module() -> ModuleType:
    """Return the module of Keras' backend, with its look_up() and take_step(). Raises ValueError."""
    return import_module(f"kvemb.keras.on_{check_backend()}")


def check_backend() -> str:
    """Return the backend of Keras. Raises ValueError for one without kvemb."""
    backend = str(keras.backend.backend())
    if backend not in ("tensorflow", "jax", "torch"):
        raise ValueError(
            f"kvemb.keras works with the backends tensorflow, jax and torch, got {backend!r}; set KERAS_BACKEND"
        )
    return backend
