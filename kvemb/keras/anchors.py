"""Anchors: a scalar weight for each variable, by which backends and Keras know that its rows are trained.

Rows are not weights of a layer. Its anchor is: Keras asks for the gradient of the anchor, which runs the backward pass
of the rows, and is the token of that pass (kvemb.keras.steps). Keras assigns it to the anchor, as its optimizers do
with weights that their gradient overwrites, and that takes the step. The anchor stays 0. Layers on one variable share
its anchor, as layers share a tied weight.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Sequence
from itertools import count
from types import FrameType
from typing import Any, cast
from weakref import WeakKeyDictionary

import keras
import numpy as np

from kvemb.keras.layer_call import backend_module
from kvemb.keras.raised import told
from kvemb.keras.rows_state import check_number, number_of
from kvemb.threads.interrupts import uninterrupted
from kvemb.variable import Variable


class Anchor(keras.Variable):
    """The anchor of a variable."""

    def __init__(self, variable: Variable) -> None:
        # PyTorch's modules keep weights by name.
        name = f"rows_{next(_numbers)}"
        super().__init__(np.zeros((), np.float32), dtype="float32", trainable=True, autocast=False, name=name)
        self.overwrite_with_gradient: bool = True
        self._rows = weakref.ref(variable)
        if keras.backend.backend() == "torch":
            self._value.copy_ = self._copied

    @property
    def rows(self) -> Variable:
        """The variable. An anchor is used by layers, which have it."""
        return cast(Variable, self._rows())

    def assign(self, value: Any) -> Any:
        """Take the step of a gradient, which the optimizer of Keras assigns. An array is the number of the state
        of the rows to which other weights belong; raises ValueError if they are in another one."""
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        if isinstance(value, (np.ndarray, np.generic, int, float)):
            check_number(self.rows, value)
            return self.value
        if caller is not None and not _is_step(caller):
            check_number(self.rows, None)
            return self.value
        # With JAX, the end of fit hides the error of a first step by one of its own if there is use_ema.
        check = told(_check_optimizer) if keras.backend.backend() == "jax" else _check_optimizer
        check(None if caller is None else caller.f_locals.get("self"))
        backend_module().take_step(self.rows, value)
        return super().assign(keras.ops.zeros((), "float32"))

    def _copied(self, *arguments: Any, **options: Any) -> Any:
        """Do what copy_ of the value does in PyTorch, but for load_state_dict, which sets weights with it."""
        frame = inspect.currentframe()
        if frame is not None and frame.f_back is not None and frame.f_back.f_code.co_name == "_load_from_state_dict":
            check_number(self.rows, None)
        return type(self._value).copy_(self._value, *arguments, **options)

    def numpy(self) -> Any:
        """Return the number of the rows' state in this process, uint64 ()."""
        return number_of(self.rows)


def _is_step(caller: FrameType) -> bool:
    """Whether a tensor that a caller assigns is a gradient, or what a step left, and not a weight that is set back."""
    if keras.backend.backend() == "jax":  # where loops assign what a compiled step returned
        return caller.f_code.co_name != "_assign_variable_values"  # of Model.set_state_tree
    return isinstance(caller.f_locals.get("self"), keras.optimizers.Optimizer)


def _check_optimizer(optimizer: Any) -> None:
    """Raise ValueError if the optimizer that assigns a gradient would do with dense weights alone what is meant for
    all."""
    for name in ("gradient_accumulation_steps", "use_ema"):
        if getattr(optimizer, name, None):
            raise ValueError(
                f"the model's optimizer has {name}={getattr(optimizer, name)}, which cannot be done with rows: they "
                "take a step for each batch, and have no averages; leave it out, or freeze the layer"
            )


_numbers = count()
_anchors: WeakKeyDictionary[Variable, Anchor] = WeakKeyDictionary()
_lock = threading.Lock()


def anchor_of(variable: Variable) -> Anchor:
    """Return the anchor of a variable."""
    with uninterrupted(), _lock:
        anchor = _anchors.get(variable)
        if anchor is None:
            anchor = _anchors[variable] = Anchor(variable)
        return anchor


def known_variables() -> list[Variable]:
    """Return the variables that layers of this process have had."""
    with uninterrupted(), _lock:
        return list(_anchors)


def take_step(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Take the step of rows in a training loop whose optimizer is not one of Keras, such as optax's or PyTorch's.

    Optimizers of Keras take it themselves, in ``apply`` and ``apply_gradients``. Works inside ``jax.jit`` and
    ``tf.function``.

    Args:
        gradients: The gradients of ``variables``, as the backend's differentiation gave them, None for none.
        variables: The trainable variables of a model, which may contain those of other layers.

    Returns:
        The gradients and the variables of the dense part, for the other optimizer.

    Raises:
        ValueError: If the lengths differ, or if the gradient of rows is not what a backward pass gave.
        KvembError: What ``kvemb.Store.apply_gradients`` raises.

    Example:
        >>> import keras, kvemb.keras as kk
        >>> kk.take_step([None], [keras.Variable(1.0)])[0]
        [None]
    """
    pairs = list(zip(gradients, variables, strict=True))
    for gradient, variable in pairs:
        if isinstance(variable, Anchor) and gradient is not None:
            backend_module().take_step(variable.rows, gradient)
    rest = [(gradient, variable) for gradient, variable in pairs if not isinstance(variable, Anchor)]
    return [gradient for gradient, _ in rest], [variable for _, variable in rest]
