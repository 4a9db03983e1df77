"""What a layer looks up: rows, or bags that are pooled in the store's memory, or, with weights, by the backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from kvemb.checks.brief import brief
from kvemb.keras.requests import Ids, Request


class Wanted(NamedTuple):
    """The rows or the bags of a request. mask: which ids count, of their shape; None: all.

    weights: floats of the shape of the ids, by which rows are multiplied. The backend does that and pools the rows, so
    weights have gradients.
    """

    request: Request
    ids: Any
    weights: Any = None
    mask: Any = None

    def lookup(self) -> tuple[Request, Ids]:
        """Return what is looked up in the store: with weights a row of each id. Raises ValueError for wrong shapes."""
        request, mask = self.request, self.mask
        shape = tuple(self.ids.shape[:-1] if request.split else self.ids.shape)
        if mask is not None:
            if len(mask.shape) != len(shape):
                raise ValueError(f"mask must have the shape of ids, {shape}, got {tuple(mask.shape)}")
            mask = keras.ops.cast(mask, "bool")
        if self.weights is not None:
            if len(getattr(self.weights, "shape", ())) != len(shape):
                raise ValueError(f"weights must have the shape of ids, {shape}, got {brief(self.weights)}")
            request = request._replace(combiner=None)
        return request, Ids(self.ids, mask)

    def result(self, rows: Any) -> Any:
        """Return the rows (..., n, dim), or the pooled bags (..., dim), of what was looked up."""
        if self.weights is None:
            return rows
        request, ops = self.request, keras.ops
        weights = ops.cast(self.weights, rows.dtype)
        rows = rows * ops.expand_dims(weights, -1)
        if request.combiner is None:
            return rows
        out = ops.sum(rows, axis=-2)
        if request.combiner == "sum":
            return out
        if request.padding is not None and not request.split:
            weights = ops.where(ops.equal(self.ids, request.padding), ops.zeros_like(weights), weights)
        if self.mask is not None:
            weights = ops.where(ops.cast(self.mask, "bool"), weights, ops.zeros_like(weights))
        if request.combiner == "mean":
            return ops.divide_no_nan(out, ops.sum(weights, axis=-1, keepdims=True))
        return ops.divide_no_nan(out, ops.sqrt(ops.sum(ops.square(weights), axis=-1, keepdims=True)))
