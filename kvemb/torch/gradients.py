"""Gradients of rows that wait for an optimizer's step, and the steps of variables that are made of them.

A module has one Pending. It holds nothing until a backward has run; then each variable's keys and gradients, in the
order of the backwards. merged() sums those of equal keys into one tensor a variable, which optimizers and
clip_grad_norm_ see as a parameter's gradient. Several threads may run backwards; none while another takes the step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kvemb.rows.hashing import Unique
from kvemb.rows.host_arrays import as_keys, public_keys
from kvemb.store import Store
from kvemb.torch.bags import Keys, joined_keys
from kvemb.variable import Variable

# Backwards whose gradients wait apart; beyond them, equal keys are summed, so that memory is bounded by distinct keys.
MAX_APART = 8


class Gradient(NamedTuple):
    """Gradients of a variable's rows. keys (n,), duplicates allowed; values (n, dim)."""

    variable: Variable
    keys: Keys
    values: torch.Tensor


class Owner(Protocol):
    """What sets the learning rates of variables: an Optimizer."""

    def before_step(self, variables: list[Variable]) -> None:
        """Set the learning rates of those that it has. Raises TypeError, ValueError."""


class Pending:
    """What a module's backwards have brought. fused: each backward takes the step, and nothing waits.

    check_finite: whether a step refuses NaN and infinities. Copies are empty and have no owner.
    """

    def __init__(self, fused: bool, check_finite: bool) -> None:
        self.fused, self.check_finite = fused, check_finite
        self._owner: weakref.ref[Owner] | None = None
        self._lock = threading.Lock()  # protects what follows, among backwards
        self.waiting: list[Gradient] = []
        self._backwards = 0

    def add(self, gradients: list[Gradient]) -> None:
        """Take what one backward brought: keep it, or if fused take the step. Raises what check_step, take_step do."""
        if self.fused:
            check_step(gradients, [self])
            take_step(gradients)
            return
        with self._lock:
            self.waiting += gradients
            self._backwards += 1
            if self._backwards > MAX_APART:
                self.waiting, self._backwards = merged(self.waiting), 1

    @property
    def owner(self) -> Owner | None:
        """The optimizer that takes the steps, or sets the rates of a fused module; None: there is none."""
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, owner: Owner) -> None:
        self._owner = weakref.ref(owner)

    def clear(self) -> None:
        """Forget what waits."""
        self.waiting, self._backwards = [], 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Pending, (self.fused, self.check_finite)


def check_step(gradients: list[Gradient], pendings: Iterable[Pending]) -> None:
    """Check what a step is given, and set the rates it takes. pendings: of the modules that the gradients come from.

    Raises ValueError for gradients that are not finite where a module has check_finite; what Owner.before_step raises.
    """
    pendings = list(pendings)
    if any(pending.check_finite for pending in pendings):
        for gradient in gradients:
            _check_finite(gradient)
    variables = list({id(gradient.variable): gradient.variable for gradient in gradients}.values())
    for owner in {id(owner): owner for pending in pendings if (owner := pending.owner) is not None}.values():
        owner.before_step(variables)


def take_step(gradients: list[Gradient]) -> None:
    """Take one optimizer step on each variable.

    REQUIRES: check_step, and that the gradients wait no longer, so that a failed step is not taken twice.
    Raises what Store.apply_gradients raises.
    """
    by_store: dict[int, tuple[Store, dict[Variable, tuple[object, object]]]] = {}
    for variable, keys, values in joined(gradients):
        store = variable.resource_handle[0]
        here = isinstance(keys, np.ndarray)
        given = values.numpy() if here else values.contiguous()
        by_store.setdefault(id(store), (store, {}))[1][variable] = keys, given
    for store, wanted in by_store.values():
        store.apply_gradients(wanted)  # type: ignore[arg-type]


def joined(gradients: list[Gradient]) -> list[Gradient]:
    """Return one gradient for each variable, in the order of first occurrence; equal keys stay apart."""
    parts: dict[int, list[Gradient]] = {}
    for gradient in gradients:
        parts.setdefault(id(gradient.variable), []).append(gradient)
    return [
        found[0]
        if len(found) == 1
        else Gradient(
            found[0].variable,
            joined_keys([part.keys for part in found]),
            torch.cat([part.values for part in found]),
        )
        for found in parts.values()
    ]


def merged(gradients: list[Gradient]) -> list[Gradient]:
    """Return one gradient for each variable, of distinct keys, those of equal keys summed in order: new tensors."""
    done = []
    for variable, keys, values in joined(gradients):
        if isinstance(keys, torch.Tensor):
            done.append(Gradient(variable, *_summed_on_device(keys, values)))
            continue
        distinct = Unique(as_keys(keys, variable.key_dtype))
        summed = values.new_zeros(len(distinct.keys), values.shape[1])
        summed.index_add_(0, torch.from_numpy(distinct.inverse), values)
        done.append(Gradient(variable, public_keys(distinct.keys, variable.key_dtype), summed))
    return done


def _summed_on_device(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the same on a GPU: rows of equal keys are put side by side, as index_add_ would add them in any order."""
    order = torch.argsort(keys, stable=True)
    distinct, counts = torch.unique_consecutive(keys[order], return_counts=True)
    return distinct, torch.segment_reduce(values[order], "sum", lengths=counts, unsafe=True)


def _check_finite(gradient: Gradient) -> None:
    finite = torch.isfinite(gradient.values).all(dim=1)
    if not bool(finite.all()):
        at = int((~finite).nonzero()[0, 0])
        key, count = int(gradient.keys[at]), int((~finite).sum())
        raise ValueError(
            f"the gradient of key {key} of variable {gradient.variable.name!r} is not finite, nor are "
            f"those of {count - 1} more; no step was taken"
        )
