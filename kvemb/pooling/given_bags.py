"""Checks of the arguments of pooled lookups: ids, offsets, weights and combiner become bags. Pure functions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_number
from kvemb.engine.table import Table
from kvemb.rows.bags import Bags, bounds_of
from kvemb.rows.hashing import Keys, Positions
from kvemb.rows.host_arrays import as_keys, as_values
from kvemb.rows.names import Names, named_keys
from kvemb.rows.schema import Schema
from kvemb.rows.tensors import plain

COMBINERS = ("mean", "sum", "sqrtn")


class GivenBags(NamedTuple):
    """Bags as a caller gave them: keys (n,), offsets (b + 1,), weights (n,) or None.

    names (n, name_bytes): of string keys (kvemb.rows.names), else None.
    """

    keys: Keys
    offsets: Positions
    weights: npt.NDArray[Any] | None
    names: Names | None = None


def given_bags(
    schema: Schema, ids: npt.ArrayLike, offsets: npt.ArrayLike, weights: npt.ArrayLike | None, *, last_included: bool
) -> GivenBags:
    """Return the arguments, checked. Raises TypeError, ValueError."""
    keys, names = flat_keys(schema, ids)
    if keys.ndim != 1:
        raise ValueError(f"ids must have shape (n,), got {keys.shape}; embedding_lookup takes ids of any shape")
    if offsets is None:  # NumPy would make an array of objects of it
        raise TypeError("offsets must be integers, got None; give where each bag begins, such as np.arange(len(ids))")
    begins = np.asarray(plain(offsets, np.dtype(np.int64), "offsets"))
    bounds = bounds_of(begins, len(keys), last_included=last_included)
    return GivenBags(keys, bounds, _weights(weights, len(keys), schema), names)


def flat_keys(schema: Schema, ids: npt.ArrayLike) -> tuple[Keys, Names | None]:
    """Return ids of any shape as keys of that shape, and the names (n, name_bytes) of strings. Raises TypeError."""
    if not schema.name_bytes:
        return as_keys(ids, schema.key_dtype), None
    named = named_keys(ids, schema.name_bytes)
    return named.keys.reshape(named.shape), named.names


def combined(given: GivenBags, combiner: str, most_norm: float, dtype: np.dtype[Any]) -> Bags:
    """Return the bags with the divisors of a combiner; see embedding_lookup_sparse."""
    sizes, none = np.diff(given.offsets), np.empty(0, dtype)
    divisors = none
    if combiner != "sum":
        power = 1 if combiner == "mean" else 2
        totals: npt.NDArray[Any] = sizes.astype(np.float64)
        if given.weights is not None:
            bag_of = np.repeat(np.arange(len(sizes)), sizes)
            totals = np.bincount(bag_of, given.weights.astype(np.float64) ** power, len(sizes))
        divisors = (totals if combiner == "mean" else np.sqrt(totals)).astype(dtype)
    return Bags(given.offsets, none if given.weights is None else given.weights, divisors, most_norm)


def single_bags(count: int, most_norm: float, dtype: np.dtype[Any]) -> Bags:
    """Return bags of one key each."""
    none = np.empty(0, dtype)
    return Bags(np.arange(count + 1), none, none, most_norm)


def without_weights_up_to_zero(given: GivenBags) -> GivenBags:
    """Return the bags without the ids whose weights are not above 0."""
    if given.weights is None:
        return given
    kept = given.weights > 0
    offsets = np.concatenate([[0], np.cumsum(kept)])[given.offsets]
    return GivenBags(given.keys[kept], offsets, given.weights[kept], None if given.names is None else given.names[kept])


def with_default(given: GivenBags, key: Any, name: Names | None) -> GivenBags:
    """Return the bags, with one id of weight 1 in each empty bag. name (1, name_bytes): of a string."""
    empty = np.diff(given.offsets) == 0
    places = given.offsets[:-1][empty]
    offsets = given.offsets + np.concatenate([[0], np.cumsum(empty)])
    weights = None if given.weights is None else np.insert(given.weights, places, 1)
    names = None if given.names is None or name is None else np.insert(given.names, places, name, axis=0)
    return GivenBags(np.insert(given.keys, places, key), offsets, weights, names)


def check_floats(table: Table, what: str) -> None:
    """Raise ValueError if rows are not floats, which `what` requires."""
    if table.schema.value_dtype.kind in "iu":
        raise ValueError(f"{what} needs rows of floats; variable {table.name!r} has {table.schema.value_dtype.name}")


def check_combiner(combiner: Any, others: tuple[str, ...] = ()) -> str:
    """Return the combiner. others: also allowed. Raises ValueError."""
    if combiner not in (*COMBINERS, *others):
        raise ValueError(f"combiner must be one of {', '.join([*COMBINERS, *others])}, got {brief(combiner)}")
    return str(combiner)


def max_norm_of(max_norm: float | None) -> float:
    """Return the largest norm of a row, inf for None. Raises TypeError, ValueError."""
    if max_norm is None:
        return math.inf
    norm = float(as_number(max_norm, "max_norm"))
    if not norm > 0:
        raise ValueError(f"max_norm must be above 0, got {brief(max_norm)}; leave it out for no bound")
    return norm


def _weights(weights: npt.ArrayLike | None, ids: int, schema: Schema) -> npt.NDArray[Any] | None:
    if weights is None:
        return None
    array = as_values(weights, schema.slot_dtype, (ids,), "weights", "ids.shape") if ids else np.asarray(weights)
    if ids == 0 and array.size:
        raise ValueError(f"weights must have shape ids.shape = (0,), got {array.shape}")
    return array.reshape(-1).astype(schema.slot_dtype, copy=False)
