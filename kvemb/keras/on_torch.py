"""Rows as tensors of PyTorch, with one step at the end of each backward pass.

Rows, and bags of tables that are hot on a GPU, are lookups of kvemb.torch. Other bags are pooled in the host's memory.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from kvemb.handle import inside
from kvemb.keras.calls import Call
from kvemb.keras.keys import joined_keys
from kvemb.keras.requests import Ids, Request, bagged, shape_of
from kvemb.keras.requests import gradients as host_gradients
from kvemb.keras.requests import look_up as host_look_up
from kvemb.threads.interrupts import uninterrupted
from kvemb.torch.bags import JaggedIds, keys_of
from kvemb.torch.gradients import Gradient, take_step
from kvemb.torch.lookups import RowRequest, fetch
from kvemb.torch.pooling import BagLookup, Pooling


class EndOfBackward:
    """Takes a step when a backward pass ends, with the gradients of all layers. Thread-safe.

    It stands for the PendingGradients of a module of kvemb.torch.
    """

    fused = False

    def __init__(self, anchors: list[Any], scale: float) -> None:
        self._anchors, self._scale = anchors, scale

    def add(self, gradients: list[Gradient]) -> None:
        """Keep the gradients of a layer until the running backward pass ends."""
        if not gradients:
            return
        task = torch._C._current_graph_task_id()
        with uninterrupted(), _lock:
            first = task not in _found
            _found.setdefault(task, []).append((self, gradients))
        if first:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _step(task))

    def unscaled(self, gradients: list[Gradient]) -> list[Gradient] | None:
        """Return the gradients without the scale of the loss; None if they are not finite."""
        if self._scale == 1.0:
            return gradients
        if not all(bool(torch.isfinite(each.values).all()) for each in gradients):
            return None
        return [each._replace(values=each.values / self._scale) for each in gradients]

    def spoil(self) -> None:
        """Make the anchors' gradients nan, so that Keras' optimizer skips its step, too."""
        for anchor in self._anchors:
            anchor.grad = torch.full_like(anchor, torch.nan)


_found: dict[int, list[tuple[EndOfBackward, list[Gradient]]]] = {}
_lock = threading.Lock()


def _step(task: int) -> None:
    with uninterrupted(), _lock:
        found = _found.pop(task)
    parts = [pending.unscaled(gradients) for pending, gradients in found]
    if any(part is None for part in parts):
        for pending, _ in found:
            pending.spoil()
        return
    take_step([gradient for part in parts for gradient in part or []])


def look_up(call: Call) -> list[Any]:
    """Return the rows of each request."""
    wanted = list(zip(call.requests, call.batch, strict=True))
    if any(ids.ids.device.type == "meta" for ids in call.batch):  # Keras asks for shapes
        return [
            torch.empty(*shape_of(request, ids), dtype=getattr(torch, request.dtype), device="meta")
            for request, ids in wanted
        ]
    anchors = [anchor.value for anchor in call.anchors.values()]
    trained = bool(anchors) and torch.is_grad_enabled()
    scale = float(call.optimizer.scale_loss(1.0)) if call.optimizer is not None and trained else 1.0
    pending = EndOfBackward(anchors, scale) if trained else None
    anchor = sum(anchors[1:], start=anchors[0]) if trained else None
    out = [
        _pooled_on_host(request, ids, anchor, pending, touch=call.touch) if _pools_on_host(request) else None
        for request, ids in wanted
    ]
    rest = {at: _Lookup(*wanted[at]) for at, found in enumerate(out) if found is None}
    rows = fetch([each.request for each in rest.values()], pending, touch=call.touch, anchor=anchor) if rest else []
    for (at, each), found in zip(rest.items(), rows, strict=True):
        out[at] = each.result(found)
    return out


def _pools_on_host(request: Request) -> bool:
    return request.combiner is not None and inside(request.variable).hot_tables.device_rows is None


def _pooled_on_host(request: Request, ids: Ids, anchor: Any, pending: EndOfBackward | None, *, touch: bool) -> Any:
    """Return bags that are pooled in the store's memory."""
    arrays = ids.like(list(map(_array, ids.given)))
    bags = torch.from_numpy(host_look_up([request], [arrays], touch=touch)[0]).to(ids.ids.device)
    if pending is None or not request.variable.trainable:
        return bags
    arrays = arrays._replace(ids=arrays.ids.copy())  # the caller may reuse their memory for the next batch
    return _Pooled.apply(anchor, bags, request, arrays, pending)


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
