"""Pending gradients of rows, and the optimizer's steps that variables take with them.

A module has one PendingGradients. It is empty until a backward pass has run; then it has each variable's keys and
gradients, in the order of the backward passes. merged() sums those of equal keys into one tensor for each variable,
which optimizers and clip_grad_norm_ see as a parameter's gradient. Several threads may run backward passes, but not
while another thread takes the step.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple, Protocol

import torch

from kvemb.checks.brief import brief
from kvemb.frameworks.store_calls import apply_gradients
from kvemb.rows.names import StringKeys
from kvemb.threads.interrupts import uninterrupted
from kvemb.torch.bags import Keys, distinct_in_host, joined_keys
from kvemb.torch.rates import Rates
from kvemb.variable import Variable

# Gradients of this many backward passes are kept apart; with more, equal keys are summed, which bounds the memory.
MAX_APART = 8
# After so many backward passes without a step, step() was probably forgotten. Gradients are seldom accumulated over
# more, and a GradScaler skips at most 40 steps until its first scale, 2**16, is small enough.
MAX_PASSES = 64


class Gradient(NamedTuple):
    """Gradients of a variable's rows. keys (n,), duplicates allowed; values (n, dim)."""

    variable: Variable
    keys: Keys
    values: torch.Tensor


class Receiver(Protocol):
    """What a backward pass hands its gradients to."""

    @property
    def fused(self) -> bool:
        """Whether add() takes the step, so that the gradients need no copies."""

    def add(self, gradients: list[Gradient]) -> None:
        """Take the gradients of a call. There are none if no row was looked up."""


class PendingGradients:
    """The gradients of a module's backward passes. fused: each backward takes the step, so none are kept.

    check_finite: whether a step refuses NaN and infinities. Copies are empty and have no optimizer.
    """

    def __init__(self, fused: bool, check_finite: bool) -> None:
        self.fused, self.check_finite = fused, check_finite
        self._rates: weakref.ref[Rates] | None = None
        self._lock = threading.Lock()  # protects the attributes below, among backward passes
        self.waiting: list[Gradient] = []
        self._backwards = 0
        # Whether a backward pass has come, even if it had no rows to train; how many since the last step, of a fused
        # module since the last one of the dense part's optimizer; the last one.
        self.reached, self.passes, self._pass = False, 0, -1

    def add(self, gradients: list[Gradient]) -> None:
        """Keep the gradients of a backward pass, or, if fused, take the step. Raises as check_step and take_step do."""
        with uninterrupted(), self._lock:
            if (this := torch._C._current_graph_task_id()) != self._pass:  # not another call of the same pass
                self.passes, self._pass = self.passes + 1, this
            if not self.fused:
                self._keep(gradients)
        if self.fused and gradients:
            check_step(gradients, [self])
            take_step(gradients)

    def _keep(self, gradients: list[Gradient]) -> None:
        self.reached = True
        if gradients:
            self.waiting += gradients
            self._backwards += 1
            if self._backwards > MAX_APART:
                self.waiting, self._backwards = merged(self.waiting), 1

    @property
    def rates(self) -> Rates | None:
        """The rates of the optimizer that takes the steps, or sets the rates of a fused module; None without one."""
        return None if self._rates is None else self._rates()

    @rates.setter
    def rates(self, rates: Rates) -> None:
        self._rates = weakref.ref(rates)

    def clear(self) -> None:
        """Discard the pending gradients."""
        self.waiting, self._backwards, self.reached = [], 0, False

    def __reduce__(self) -> tuple[Any, ...]:
        return PendingGradients, (self.fused, self.check_finite)


def check_step(gradients: list[Gradient], pendings: list[PendingGradients]) -> None:
    """Check the gradients of a step, and set its learning rates. pendings: of the modules that the gradients come from.

    Raises ValueError for gradients that are not finite where a module has check_finite; what Rates.set() raises.
    """
    if any(pending.check_finite for pending in pendings):
        for gradient in gradients:
            check_finite(gradient)
    variables = dict.fromkeys([gradient.variable for gradient in gradients])
    for rates in dict.fromkeys([pending.rates for pending in pendings]):
        if rates is not None:
            rates.set(variables)


def take_step(gradients: list[Gradient]) -> None:
    """Take one optimizer step on each variable.

    REQUIRES: check_step() was called, and the gradients are no longer pending, so that a failed step is not taken
    twice.
    Raises what Store.apply_gradients raises.
    """
    apply_gradients(
        [
            (variable, keys, values.contiguous() if isinstance(keys, torch.Tensor) else values.numpy())
            for variable, keys, values in joined(gradients)
        ]
    )


def joined(gradients: list[Gradient]) -> list[Gradient]:
    """Return one gradient for each variable, in the order of first occurrence; equal keys are not summed."""
    parts: dict[Variable, list[Gradient]] = {}
    for gradient in gradients:
        parts.setdefault(gradient.variable, []).append(gradient)
    return [
        found[0]
        if len(found) == 1
        else Gradient(variable, joined_keys([part.keys for part in found]), torch.cat([part.values for part in found]))
        for variable, found in parts.items()
    ]


def merged(gradients: list[Gradient]) -> list[Gradient]:
    """Return one gradient for each variable, as new tensors, with those of equal keys summed in order."""
    done = []
    for variable, keys, values in joined(gradients):
        if isinstance(keys, torch.Tensor):
            done.append(Gradient(variable, *_summed_on_device(keys, values)))
            continue
        distinct, found = distinct_in_host(keys, variable)
        summed = values.new_zeros(len(distinct), values.shape[1])
        summed.index_add_(0, torch.from_numpy(found.inverse), values)
        done.append(Gradient(variable, distinct, summed))
    return done


def _summed_on_device(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the gradients of equal keys on a GPU. Sorts by key first, as index_add_ would add them in any order."""
    order = torch.argsort(keys, stable=True)
    distinct, counts = torch.unique_consecutive(keys[order], return_counts=True)
    return distinct, torch.segment_reduce(values[order], "sum", lengths=counts, unsafe=True)


def check_finite(gradient: Gradient) -> None:
    """Raise ValueError for a NaN or an infinity."""
    finite = torch.isfinite(gradient.values).all(dim=1)
    if not bool(finite.all()):
        at, others = int((~finite).nonzero()[0, 0]), int((~finite).sum()) - 1
        keys = gradient.keys[at : at + 1]
        key = keys.strings()[0] if isinstance(keys, StringKeys) else int(keys[0])
        more = f", nor are those of {others} more" if others else ""
        raise ValueError(
            f"the gradient of key {brief(key)} of variable {gradient.variable.name!r} is not finite{more}; no step was "
            "taken"
        )
