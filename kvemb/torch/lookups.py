"""Rows as tensors of autograd: a call looks up rows of several variables; its backward pass collects gradients.

The rows are the outputs of a Function whose only input is a constant, so nothing of a forward pass outlives its graph.
Gradients are not scattered: each variable's gradient has the rows in the order in which they were looked up.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from kvemb.frameworks.store_calls import look_up
from kvemb.handle import inside
from kvemb.many_tables.table_parts import CountedKeys
from kvemb.rows.device_arrays import device_of
from kvemb.rows.names import StringKeys
from kvemb.torch.bags import Keys, distinct_in_host, joined_keys, not_padding, own_keys
from kvemb.torch.eager import never_compiled
from kvemb.torch.gradients import Gradient, Receiver
from kvemb.variable import Variable

# The input that makes autograd call backward; it gets no gradient itself.
_ANCHOR = torch.zeros((), requires_grad=True)
_WIDE = {"float16": torch.float32, "bfloat16": torch.float32, "float32": torch.float32, "float64": torch.float64}


def dtype_of_rows(variable: Variable) -> torch.dtype:
    """Return the dtype of a variable's looked-up rows."""
    return _WIDE[variable.value_dtype.name]


class RowRequest(NamedTuple):
    """Rows of a variable to look up. keys (n,). padding: the key whose rows are zeros, neither read nor trained.

    mask (n,): bools, False where rows are zeros, too; None: nowhere.
    counts (n,): how many uses of each key are recorded; None: one for each occurrence.
    unchanged: whether the caller of forward gets these rows as they are. Their gradients may then share memory with
    another tensor.
    """

    variable: Variable
    keys: Keys
    padding: int | str | None = None
    unchanged: bool = True
    counts: torch.Tensor | None = None
    mask: torch.Tensor | None = None


def on_variables_device(keys: Keys, variable: Variable) -> Keys:
    """Return keys on the variable's GPU if they are there already, otherwise in the host's memory, in its key dtype.

    Raises TypeError if the variable does not take keys of this dtype, or a negative key.
    """
    return _in_key_dtype(_moved(keys, variable), variable)


def _moved(keys: Keys, variable: Variable) -> Keys:
    if not isinstance(keys, torch.Tensor):
        return keys
    device_rows = inside(variable).hot_tables.device_rows
    return keys if device_rows is not None and device_rows.device == device_of(keys) else keys.cpu().numpy()


def _in_key_dtype(keys: Keys, variable: Variable) -> Keys:
    wanted = variable.key_dtype
    if isinstance(keys, StringKeys):
        return keys
    if isinstance(keys, np.ndarray):
        if wanted != np.uint64 or keys.dtype.kind != "i":
            return keys  # the call of the store converts them, or raises
        # Ids are LongTensors, as a rule: few functions of PyTorch take unsigned ones.
        if len(keys) and int(keys.min()) < 0:
            raise TypeError(
                f"keys must fit uint64, got {keys.min()}; for keys of 2**63 and more pass ids.view(torch.uint64)"
            )
        return keys.astype(np.uint64)
    name = str(keys.dtype).removeprefix("torch.")
    if not np.can_cast(np.dtype(name), wanted, "safe"):
        raise TypeError(f"keys must be {wanted.name}, got {name}, which would lose information; convert them first")
    return keys.to(getattr(torch, wanted.name)).contiguous()


class _Read(NamedTuple):
    """What is looked up for a request. positions: of these keys among those of the request; None: all, in order."""

    variable: Variable
    keys: Keys
    counts: torch.Tensor | None
    positions: torch.Tensor | None
    unchanged: bool


def fetch(
    requests: list[RowRequest], pending: Receiver | None, *, touch: bool, anchor: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Return the rows of each, (n, dim), float32, or float64 for float64 values, with one call for each store.

    pending: receives the gradients; None: the rows get no gradients. touch: whether looked-up rows count as used.
    anchor: a parameter of one number whose gradient, which is 0, makes autograd call backward; None: a constant.
    """
    trained = pending is not None and torch.is_grad_enabled() and any(each.variable.trainable for each in requests)
    reads = [_to_read(each, trained) for each in requests]
    rows = [_tensor(*part) for part in look_up(reads, lambda each: _counted(each, touch), touch=touch)]
    for at, (request, read) in enumerate(zip(requests, reads, strict=True)):
        if read.positions is not None:
            whole = rows[at].new_zeros(len(request.keys), read.variable.dim)
            whole[read.positions] = rows[at]
            rows[at] = whole
    return list(_Rows.apply(_ANCHOR if anchor is None else anchor, rows, reads, pending)) if trained else rows


def _to_read(request: RowRequest, trained: bool) -> _Read:
    """Return what is looked up: all keys but the padding and masked ones. trained: keep the keys for a step."""
    variable, keys, padding, unchanged, counts, mask = request
    keys = _moved(keys, variable)
    here = None if mask is None else mask.to(keys.device) if isinstance(keys, torch.Tensor) else mask.cpu().numpy()
    if (kept := not_padding(keys, padding)) is not None:
        here = kept if here is None else here & kept
    if here is None or here.all():
        keys = _in_key_dtype(keys, variable)
        if trained:  # a copy, as the caller may reuse their memory for the next batch
            keys = keys.clone() if isinstance(keys, torch.Tensor) else own_keys(keys)
        return _Read(variable, keys, counts, None, unchanged)
    positions = here.nonzero()[:, 0] if isinstance(here, torch.Tensor) else torch.from_numpy(np.flatnonzero(here))
    kept = _in_key_dtype(keys[here], variable)
    return _Read(variable, kept, None if counts is None else counts[positions], positions, unchanged)


def _counted(reads: list[_Read], touch: bool) -> Any:
    """Return the keys of one variable, with their counts if they have any and uses are recorded."""
    keys = joined_keys([each.keys for each in reads])
    if not touch or all(each.counts is None for each in reads):
        return keys
    of_each = [_ones(each) if each.counts is None else each.counts for each in reads]
    counts = of_each[0] if len(of_each) == 1 else torch.cat(of_each)
    return CountedKeys(keys, counts if isinstance(keys, torch.Tensor) else counts.numpy())


def _ones(read: _Read) -> torch.Tensor:
    device = read.keys.device if isinstance(read.keys, torch.Tensor) else None
    return torch.ones(len(read.keys), dtype=torch.int64, device=device)


def _tensor(rows: Any, begin: int, end: int) -> torch.Tensor:
    """Return some of the rows as a tensor of float32 or float64, which shares their memory if they have that dtype.

    Not as a view of a tensor of all, of which autograd would refuse changes in place.
    """
    if isinstance(rows, torch.Tensor):
        part = rows if end - begin == len(rows) else rows[begin:end].clone()
        return part.to(_WIDE[str(part.dtype).removeprefix("torch.")])
    rows, name = rows[begin:end], _name_of(rows.dtype)
    if name == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16).float()
    return torch.from_numpy(rows).to(_WIDE[name])


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which in NumPy takes longer than everything else done for a small tensor


class _Rows(torch.autograd.Function):
    """Looked-up rows, whose gradients become pending."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, rows: list[torch.Tensor], reads: list[_Read], pending: Any) -> Any:
        """Return the rows as outputs."""
        ctx.anchored = None if anchor is _ANCHOR else (anchor.shape, anchor.device)
        ctx.save_for_backward(_ANCHOR)  # so that a second backward pass through a freed graph raises, as usual
        ctx.reads, ctx.pending = reads, pending
        ctx.set_materialize_grads(False)
        return tuple(rows)

    @staticmethod
    @never_compiled  # otherwise the compiler would trace a backward pass into NumPy
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Add the gradients of the rows that were used to the pending ones."""
        (_,) = ctx.saved_tensors
        fused = ctx.pending.fused
        found = [
            Gradient(read.variable, read.keys, _private(grad, read.positions, shared=read.unchanged and not fused))
            for grad, read in zip(grads, ctx.reads, strict=True)
            if grad is not None and read.variable.trainable and len(read.keys)
        ]
        ctx.pending.add(found)
        zero = None if ctx.anchored is None else torch.zeros(ctx.anchored[0], device=ctx.anchored[1])
        return zero, None, None, None


def _private(grad: torch.Tensor, positions: torch.Tensor | None, *, shared: bool) -> torch.Tensor:
    """Return a gradient, or its rows at some positions, that does not change before the step.

    shared: make a copy, because autograd may use this memory as a parameter's `grad`, which is changed in place, or it
    may be an array that the caller of backward() reuses.
    """
    grad = grad.detach().to_dense().resolve_neg()  # from F.embedding(sparse=True), from .imag of a complex
    if positions is not None:
        return grad[positions]
    return grad.clone() if shared else grad


class Distinct(NamedTuple):
    """The distinct keys of a batch (m,), the position of each key of the batch in them (n,), their counts (m,)."""

    keys: Keys
    inverse: torch.Tensor
    counts: torch.Tensor


def distinct(keys: Keys, variable: Variable) -> Distinct:
    """Return the distinct keys, by first occurrence, or on a GPU ascending. Raises TypeError for a wrong dtype."""
    keys = on_variables_device(keys, variable)
    if isinstance(keys, torch.Tensor):
        return Distinct(*torch.unique(keys, return_inverse=True, return_counts=True))
    keys, found = distinct_in_host(keys, variable)
    return Distinct(keys, torch.from_numpy(found.inverse), torch.from_numpy(found.counts))


def divide_gradient(rows: torch.Tensor, counts: torch.Tensor) -> None:
    """Make autograd divide the gradient of rows (n, dim) by counts (n,) before anything receives it."""
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad / counts[:, None])
