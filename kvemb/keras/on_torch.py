"""Rows as tensors of PyTorch.

Rows, and bags of tables that are hot on a GPU, are lookups of kvemb.torch. Other bags are pooled in the host's memory.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import torch

from kvemb.handle import inside
from kvemb.keras.exporting import refuse
from kvemb.keras.keys import joined_keys
from kvemb.keras.layer_call import Call
from kvemb.keras.requests import Ids, Request, bagged, shape_of
from kvemb.keras.requests import gradients as host_gradients
from kvemb.keras.requests import look_up as host_look_up
from kvemb.keras.steps import Step, begin, keep, new_token, take
from kvemb.threads.interrupts import uninterrupted
from kvemb.torch.bags import JaggedIds, keys_of
from kvemb.torch.gradients import Gradient
from kvemb.torch.gradients import take_step as _take_gradients
from kvemb.torch.lookups import RowRequest, fetch
from kvemb.torch.pooling import BagLookup, Pooling
from kvemb.variable import Variable


class Backward:
    """Receives the gradients that a backward pass gives to the rows of a call. Thread-safe.

    It stands for the PendingGradients of a module of kvemb.torch. anchors: of the call. scale: of the loss.
    """

    fused = False

    def __init__(self, anchors: dict[Variable, Any], scale: float) -> None:
        self.anchors, self._scale = anchors, scale

    def add(self, gradients: list[Gradient]) -> None:
        """Keep the gradients of a layer until the running backward pass ends."""
        _running().parts.append((self, gradients))

    def unscaled(self, gradients: list[Gradient]) -> list[Gradient] | None:
        """Return the gradients without the scale of the loss; None if they are not finite."""
        if self._scale == 1.0:
            return gradients
        if not all(bool(torch.isfinite(each.values).all()) for each in gradients):
            return None
        return [each._replace(values=each.values / self._scale) for each in gradients]


class _Pass:
    """A running backward pass: its token, the anchors that it has reached, and the gradients of rows."""

    def __init__(self) -> None:
        self.token = new_token()
        self.anchors: dict[Variable, Any] = {}
        self.parts: list[tuple[Backward, list[Gradient]]] = []

    def tokens(self, anchors: dict[Variable, Any]) -> list[Any]:
        """Return the gradients of anchors, whose sum over all calls of the pass is its token."""
        with uninterrupted(), _lock:
            found = [0.0 if variable in self.anchors else self.token for variable in anchors]
            self.anchors |= anchors
        return [torch.full_like(anchor, each) for anchor, each in zip(anchors.values(), found, strict=True)]

    def seal(self) -> None:
        """Keep the steps of the gradients. If a scaled one is not finite, there are none, and anchors' gradients are
        nan, so that Keras' optimizer skips its step, too."""
        parts = [backward.unscaled(gradients) for backward, gradients in self.parts]
        finite = all(part is not None for part in parts)
        found: dict[Variable, list[Gradient]] = {variable: [] for variable in self.anchors}
        for gradient in (each for part in parts if finite for each in part or []):
            found[gradient.variable].append(gradient)
        keep(self.token, {variable: _step(gradients) for variable, gradients in found.items()})
        for anchor in self.anchors.values():
            if not finite and anchor.grad is not None:
                anchor.grad = torch.full_like(anchor, torch.nan)


_passes: dict[int, _Pass] = {}
_lock = threading.Lock()


def _running() -> _Pass:
    """Return the backward pass that runs on this thread."""
    task = torch._C._current_graph_task_id()
    with uninterrupted(), _lock:
        found = _passes.get(task)
        if found is None:
            found = _passes[task] = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _passes.pop(task).seal())
    return found


def _step(gradients: list[Gradient]) -> Step:
    keys = gradients[0].keys if gradients else ()
    sample = keys if isinstance(keys, np.ndarray) else ()
    return Step(sample, partial(_take_gradients, gradients) if gradients else None)


class _Gate(torch.autograd.Function):
    """A zero that layers depend on, from anchors, whose gradients are tokens."""

    @staticmethod
    def forward(ctx: Any, backward: Backward, *anchors: Any) -> Any:
        """Return the zero."""
        ctx.given = backward
        return anchors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        """Return the tokens."""
        return None, *_running().tokens(ctx.given.anchors)


def take_step(variable: Variable, token: Any) -> None:
    """Take the step of an anchor's gradient."""
    take(variable, float(token))


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    if torch.jit.is_tracing() or torch.compiler.is_exporting():
        refuse()
    wanted = list(zip(call.requests, call.batch, strict=True))
    if any(ids.ids.device.type == "meta" for ids in call.batch):  # Keras asks for shapes
        return [
            torch.empty(*shape_of(request, ids), dtype=getattr(torch, request.dtype), device="meta")
            for request, ids in wanted
        ]
    anchors = {variable: anchor.value for variable, anchor in call.anchors.items()}
    gate = pending = None
    if anchors and torch.is_grad_enabled():
        begin(list(anchors), [float(anchor.detach()) for anchor in anchors.values()])
        scale = float(call.optimizer.scale_loss(1.0)) if call.optimizer is not None else 1.0
        pending = Backward(anchors, scale)
        gate = _Gate.apply(pending, *anchors.values())
    out = [
        _pooled_on_host(request, ids, gate, pending, touch=call.touch) if _pools_on_host(request) else None
        for request, ids in wanted
    ]
    rest = {at: _Lookup(*wanted[at]) for at, found in enumerate(out) if found is None}
    rows = fetch([each.request for each in rest.values()], pending, touch=call.touch, anchor=gate) if rest else []
    for (at, each), found in zip(rest.items(), rows, strict=True):
        out[at] = each.result(found)
    return out


def _pools_on_host(request: Request) -> bool:
    return request.combiner is not None and inside(request.variable).hot_tables.device_rows is None


def _pooled_on_host(request: Request, ids: Ids, gate: Any, pending: Backward | None, *, touch: bool) -> Any:
    """Return bags that are pooled in the store's memory."""
    arrays = ids.like(list(map(_array, ids.given)))
    bags = torch.from_numpy(host_look_up([request], [arrays], touch=touch)[0]).to(ids.ids.device)
    if pending is None or not request.variable.trainable:
        return bags
    arrays = arrays._replace(ids=arrays.ids.copy())  # the caller may reuse their memory for the next batch
    return _Pooled.apply(gate, bags, request, arrays, pending)


class _Pooled(torch.autograd.Function):
    """Pooled bags, whose gradients are handed over."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, bags: Any, *source: Any) -> Any:
        """Return the bags as an output."""
        ctx.save_for_backward(anchor)  # so that a second backward pass through a freed graph raises, as usual
        ctx.source = source
        return bags

    @staticmethod
    def backward(ctx: Any, grads: Any) -> Any:
        """Hand over the gradients of the rows."""
        (anchor,) = ctx.saved_tensors
        request, arrays, pending = ctx.source
        keys, values = host_gradients(request, arrays, _array(grads))
        if len(keys):
            pending.add([Gradient(request.variable, keys, torch.from_numpy(values))])
        return torch.zeros_like(anchor), *[None] * 4


class _Lookup:
    """The ids of one request. request: the rows to look up, from which result() makes rows or bags."""

    def __init__(self, request: Request, ids: Ids) -> None:
        self._asked, self._ids = request, ids
        if request.combiner is None:
            if request.split:
                keys: Any = joined_keys(_array(ids.ids))
            else:
                keys = ids.ids.detach() if ids.ids.is_cuda else keys_of(ids.ids)
            mask = None if ids.mask is None else ids.mask.reshape(-1)
            self.request = RowRequest(request.variable, keys.reshape(-1), request.padding, mask=mask)
            return
        part = bagged(request, ids.like(list(map(_array, ids.given))))
        begins, count = torch.from_numpy(part.offsets), len(part.offsets)
        one_each = len(part.keys) == count and bool((part.offsets == np.arange(count)).all())
        jagged = JaggedIds(part.keys, begins, count, None, one_each, ids.ids.device)
        self._sizes = np.diff(np.append(part.offsets, len(part.keys)))
        self._bags = BagLookup(request.variable, jagged, Pooling("mean" if request.combiner == "mean" else "sum"))
        self.request = self._bags.request

    def result(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows or bags of the shape that was asked for."""
        if self._asked.combiner is not None:
            rows = self._bags.pool(rows)
        if self._asked.combiner == "sqrtn":
            rows = rows / torch.from_numpy(np.sqrt(np.maximum(self._sizes, 1))).to(rows)[:, None]
        dtype = getattr(torch, self._asked.dtype)
        return rows.view(shape_of(self._asked, self._ids)).to(self._ids.ids.device, dtype)


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().numpy()
