"""Rows as tensors that autograd knows: a call looks up rows of several variables; its backward brings gradients.

The rows are the outputs of a Function whose only input is a constant, so nothing of a forward outlives its graph. No
gradient is scattered: for each variable it is that of the rows as they were looked up.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kvemb.handle import inside
from kvemb.rows.device_arrays import device_of
from kvemb.rows.hashing import Unique
from kvemb.rows.host_arrays import as_keys, public_keys
from kvemb.store import Store
from kvemb.torch.bags import Keys, joined_keys
from kvemb.torch.gradients import Gradient
from kvemb.variable import Variable

# What makes autograd call backward; it takes no gradient itself.
_ANCHOR = torch.zeros((), requires_grad=True)
_WIDE = {"float16": torch.float32, "bfloat16": torch.float32, "float32": torch.float32, "float64": torch.float64}


class Wanted(NamedTuple):
    """Rows of a variable. keys (n,). padding: the key whose rows are zeros, are not looked up, and get no gradient.

    given: whether they are given to a user as they are, so that the memory of their gradients may be another tensor's.
    """

    variable: Variable
    keys: Keys
    padding: int | None = None
    given: bool = True


def fitting(keys: Keys, variable: Variable) -> Keys:
    """Return keys as the variable takes them: on its GPU if they are there, else in the host's memory.

    Raises TypeError for a dtype on the GPU that does not fit.
    """
    if isinstance(keys, np.ndarray):
        return keys
    device_rows = inside(variable).hot_tables.device_rows
    if device_rows is None or device_rows.device != device_of(keys):
        return keys.cpu().numpy()
    name, wanted = str(keys.dtype).removeprefix("torch."), variable.key_dtype
    if not np.can_cast(np.dtype(name), wanted, "safe"):
        raise TypeError(f"keys must be {wanted.name}, got {name}, which would lose information; convert them first")
    return keys.to(getattr(torch, wanted.name)).contiguous()


def possible(padding: int | None, keys: Keys) -> int | None:
    """Return a padding key; None if there is none, or keys of this dtype cannot be it."""
    if padding is None:
        return None
    limits = np.iinfo(keys.dtype) if isinstance(keys, np.ndarray) else torch.iinfo(keys.dtype)
    return padding if limits.min <= padding <= limits.max else None


class Sink(Protocol):
    """Where gradients go. fused: it keeps none of them."""

    fused: bool

    def add(self, gradients: list[Gradient]) -> None:
        """Take what one backward brought."""


def fetch(wanted: list[Wanted], sink: Sink | None, *, touch: bool) -> list[torch.Tensor]:
    """Return the rows of each, (n, dim), float32, or float64 of float64 values, in one call for each store.

    sink: gets the gradients of a backward; None: none are taken. touch: whether a row looked up counts as used.
    """
    trained = sink is not None and torch.is_grad_enabled() and any(each.variable.trainable for each in wanted)
    wanted = [each._replace(keys=fitting(each.keys, each.variable)) for each in wanted]
    kept = [_kept(each, trained) for each in wanted]
    rows = _looked_up([(each.variable, keys) for each, (keys, _) in zip(wanted, kept, strict=True)], touch)
    for at, (each, (_, positions)) in enumerate(zip(wanted, kept, strict=True)):
        if positions is not None:
            whole = rows[at].new_zeros(len(each.keys), each.variable.dim)
            whole[positions] = rows[at]
            rows[at] = whole
    if not trained:
        return rows
    sources = [(each, keys, positions) for each, (keys, positions) in zip(wanted, kept, strict=True)]
    return list(_Rows.apply(_ANCHOR, rows, sources, sink))


def _kept(wanted: Wanted, trained: bool) -> tuple[Keys, torch.Tensor | None]:
    """Return the keys to look up, and where their rows belong; None: everywhere. trained: they wait for a step."""
    padding = possible(wanted.padding, wanted.keys)
    here = None if padding is None else wanted.keys != padding
    if here is None or here.all():
        # A copy: whoever gave them may put the next batch in their place.
        return _copy(wanted.keys) if trained else wanted.keys, None
    if isinstance(here, torch.Tensor):
        return wanted.keys[here], here.nonzero()[:, 0]
    positions = np.flatnonzero(here)
    return wanted.keys[positions], torch.from_numpy(positions)


def _copy(keys: Keys) -> Keys:
    return keys.copy() if isinstance(keys, np.ndarray) else keys.clone()


def _looked_up(wanted: list[tuple[Variable, Keys]], touch: bool) -> list[torch.Tensor]:
    """Return the rows of each. Of one variable that is wanted several times, all keys are looked up together."""
    stores: dict[int, tuple[Store, dict[Variable, list[int]]]] = {}
    for at, (variable, _) in enumerate(wanted):
        store = variable.resource_handle[0]
        stores.setdefault(id(store), (store, {}))[1].setdefault(variable, []).append(at)
    rows: list[Any] = [None] * len(wanted)
    for store, variables in stores.values():
        keys_by_variable: dict[Variable | str, Any] = {}
        for variable, places in variables.items():
            keys_by_variable[variable] = joined_keys([wanted[each][1] for each in places])
        found = store.lookup(keys_by_variable, touch=touch)
        for variable, places in variables.items():
            begin = 0
            for each in places:
                # Tensors of their own, apart in one array: autograd refuses changes in place of views of one tensor.
                end = begin + len(wanted[each][1])
                rows[each], begin = _tensor(found[variable], begin, end), end
    return rows


def _tensor(rows: Any, begin: int, end: int) -> torch.Tensor:
    """Return some of the rows as a tensor of float32, or float64, that shares their memory if they are that."""
    if isinstance(rows, torch.Tensor):
        part = rows if end - begin == len(rows) else rows[begin:end].clone()
        return part.to(_WIDE[str(part.dtype).removeprefix("torch.")])
    rows, name = rows[begin:end], _name_of(rows.dtype)
    if name == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(rows).to(_WIDE[name])


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which takes NumPy longer than all else that is done for a small tensor


class _Rows(torch.autograd.Function):
    """Rows that were looked up, whose gradients go to a sink."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, rows: list[torch.Tensor], sources: Any, sink: Sink) -> Any:
        """Return the rows as outputs."""
        ctx.save_for_backward(anchor)  # so that a second backward through a freed graph raises, as elsewhere
        ctx.sources, ctx.sink = sources, sink
        ctx.set_materialize_grads(False)
        return tuple(rows)

    @staticmethod
    @torch.compiler.disable  # which would follow a backward inside a compiled function into NumPy
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Give the gradients of those that were used to the sink."""
        (_,) = ctx.saved_tensors
        found = [
            Gradient(wanted.variable, keys, _own(grad, at, shared=wanted.given and not ctx.sink.fused))
            for grad, (wanted, keys, at) in zip(grads, ctx.sources, strict=True)
            if grad is not None and wanted.variable.trainable and len(keys)
        ]
        if found:
            ctx.sink.add(found)
        return None, None, None, None


def _own(grad: torch.Tensor, positions: torch.Tensor | None, *, shared: bool) -> torch.Tensor:
    """Return a gradient, or its rows at some positions, as they will be at the step.

    shared: a copy, as autograd may make this memory a parameter's `grad` too, which is then changed in place, and it
    may be an array that the caller of backward() fills again.
    """
    if positions is not None:
        return grad.detach()[positions]
    return grad.detach().clone() if shared else grad.detach()


class Distinct(NamedTuple):
    """The distinct keys of a batch (m,), for each key of it (n,) its position among them, and how often each occurs."""

    keys: Keys
    inverse: torch.Tensor
    counts: torch.Tensor


def distinct(keys: Keys, variable: Variable) -> Distinct:
    """Return the distinct keys, in order of first occurrence, or on a GPU in their own. Raises TypeError for keys that
    do not fit.
    """
    keys = fitting(keys, variable).reshape(-1)
    if isinstance(keys, torch.Tensor):
        return Distinct(*torch.unique(keys, return_inverse=True, return_counts=True))
    found = Unique(as_keys(keys, variable.key_dtype))
    return Distinct(
        public_keys(found.keys, variable.key_dtype), torch.from_numpy(found.inverse), torch.from_numpy(found.counts)
    )


def divide_gradient(rows: torch.Tensor, counts: torch.Tensor) -> None:
    """Divide the gradient of rows (n, dim), before it is brought anywhere, by counts (n,)."""
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad / counts[:, None])
