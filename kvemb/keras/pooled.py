"""What a layer looks up: rows, or bags that are pooled in the store's memory or, from rows, by the backend."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from kvemb.checks.brief import brief
from kvemb.keras.keys import split_keys
from kvemb.keras.requests import Ids, Request

# Of the combiners of a layer, those that the backend computes from rows.
EXTREMES = ("max", "min")


class Wanted(NamedTuple):
    """The rows or the bags of a request. mask: which ids count, of their shape; None: all.

    weights: floats of the shape of the ids, by which rows are multiplied. max_norm: the L2 norm to which rows are
    clipped first. With either, or a combiner of EXTREMES, the backend pools the rows, so weights have gradients.
    """

    request: Request
    ids: Any
    weights: Any = None
    mask: Any = None
    max_norm: float | None = None

    def lookup(self) -> tuple[Request, Ids]:
        """Return what is looked up in the store: bags, or a row of each id. Raises ValueError for wrong shapes."""
        request, mask = self.request, self.mask
        shape = self._shape
        if mask is not None:
            if len(mask.shape) != len(shape):
                raise ValueError(f"mask must have the shape of ids, {shape}, got {tuple(mask.shape)}")
            mask = keras.ops.cast(mask, "bool")
        if self.weights is not None and len(getattr(self.weights, "shape", ())) != len(shape):
            raise ValueError(f"weights must have the shape of ids, {shape}, got {brief(self.weights)}")
        return request._replace(combiner=None) if self.from_rows else request, Ids(self.ids, mask)

    @property
    def from_rows(self) -> bool:
        """Whether the backend pools rows, of ids of one shape."""
        return self.weights is not None or self.max_norm is not None or self.request.combiner in EXTREMES

    def result(self, rows: Any) -> Any:
        """Return the rows (..., n, dim), or the pooled bags (..., dim), of what was looked up."""
        if not self.from_rows:
            return rows
        combiner, ops = self.request.combiner, keras.ops
        if self.max_norm is not None:
            rows = _clipped(rows, self.max_norm)
        weights = None if self.weights is None else ops.cast(self.weights, rows.dtype)
        if weights is not None:
            rows = rows * ops.expand_dims(weights, -1)
        if combiner is None:
            return rows
        counts = self._counts()
        if combiner in EXTREMES:
            return _extreme(rows, counts, combiner)
        out = ops.sum(rows, axis=-2)
        if combiner == "sum":
            return out
        if weights is None:
            weights = ops.ones(ops.shape(rows)[:-1], rows.dtype)
        if counts is not None:
            weights = ops.where(counts, weights, ops.zeros_like(weights))
        if combiner == "mean":
            return ops.divide_no_nan(out, ops.sum(weights, axis=-1, keepdims=True))
        return ops.divide_no_nan(out, ops.sqrt(ops.sum(ops.square(weights), axis=-1, keepdims=True)))

    @property
    def _shape(self) -> tuple[int | None, ...]:
        return tuple(self.ids.shape[:-1] if self.request.split else self.ids.shape)

    def _counts(self) -> Any:
        """Return which ids count, bools of their shape; None: all."""
        ops, padding = keras.ops, self.request.padding
        counts = None if self.mask is None else ops.cast(self.mask, "bool")
        if padding is None:
            return counts
        if self.request.split:
            other = ops.any(ops.not_equal(self.ids, split_keys(padding)), axis=-1)
        else:
            other = ops.not_equal(self.ids, padding)
        return other if counts is None else ops.logical_and(counts, other)


def _clipped(rows: Any, most: float) -> Any:
    """Return rows scaled down to an L2 norm, through which gradients flow, as tf.clip_by_norm does."""
    ops = keras.ops
    squares = ops.sum(ops.square(rows), axis=-1, keepdims=True)
    long = squares > most * most
    norms = ops.sqrt(ops.where(long, squares, ops.ones_like(squares)))  # of a row of zeros it has no gradient
    return ops.where(long, rows * (most / norms), rows)


def _extreme(rows: Any, counts: Any, combiner: str) -> Any:
    """Return the largest or smallest elements of rows (..., n, dim) over n; an empty bag gives zeros."""
    ops = keras.ops
    pick = ops.max if combiner == "max" else ops.min
    if counts is None:
        return pick(rows, axis=-2)
    counts = ops.expand_dims(counts, -1)
    last = ops.full_like(rows, -float("inf") if combiner == "max" else float("inf"))
    found = pick(ops.where(counts, rows, last), axis=-2)
    return ops.where(ops.any(counts, axis=-2), found, ops.zeros_like(found))
