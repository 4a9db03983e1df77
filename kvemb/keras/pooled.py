"""Bags of ids of a layer: pooled in the store's memory, or, with weights, by the backend, which has their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from kvemb.checks.brief import brief
from kvemb.keras.requests import Ids, Request
from kvemb.variable import Variable


class Bag(NamedTuple):
    """How the bags of a feature are looked up; see Request."""

    variable: Variable
    combiner: str
    padding: int | None = None
    split: bool = False
    dtype: str = "float32"


def request_for(bag: Bag, weights: Any) -> Request:
    """Return what is looked up: bags, or with weights a row of each id."""
    combiner = bag.combiner if weights is None else None
    return Request(bag.variable, combiner, bag.padding, bag.split, bag.dtype)


def ids_for(bag: Bag, ids: Any, mask: Any) -> Ids:
    """Return the ids of a batch. Raises ValueError for a mask of another shape."""
    if mask is not None:
        shape = tuple(ids.shape[:-1] if bag.split else ids.shape)
        if len(mask.shape) != len(shape):
            raise ValueError(f"mask must have the shape of ids, {shape}, got {tuple(mask.shape)}")
        mask = keras.ops.cast(mask, "bool")
    return Ids(ids, mask)


def result_of(bag: Bag, rows: Any, ids: Any, weights: Any, mask: Any) -> Any:
    """Return the pooled bags (..., dim). rows: what request_for() looked up."""
    if weights is None:
        return rows
    if not hasattr(weights, "shape") or len(weights.shape) != len(rows.shape) - 1:
        raise ValueError(f"weights must have the shape of ids, {tuple(rows.shape[:-1])}, got {brief(weights)}")
    ops = keras.ops
    weights = ops.cast(weights, rows.dtype)
    out = ops.sum(rows * ops.expand_dims(weights, -1), axis=-2)
    if bag.combiner == "sum":
        return out
    counted = weights
    if bag.padding is not None and not bag.split:
        counted = ops.where(ops.equal(ids, bag.padding), ops.zeros_like(weights), weights)
    if mask is not None:
        counted = ops.where(ops.cast(mask, "bool"), counted, ops.zeros_like(weights))
    total = ops.sum(counted if bag.combiner == "mean" else ops.square(counted), axis=-1, keepdims=True)
    divisor = total if bag.combiner == "mean" else ops.sqrt(total)
    return ops.divide_no_nan(out, divisor)
