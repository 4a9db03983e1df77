"""Tables of a framework, in place of a store's variables: keys and rows as weights that do not change.

In an exported model they are what layers look up. A lookup searches the sorted keys, and gives a missing key the
initializer's row. float32 results are the bits of a store's: bags are summed in the same order. Immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from kvemb.initializers import Initializer
from kvemb.initializers.base import Fixed
from kvemb.keras.requests import Ids, Request
from kvemb.keras.static_draws import draw_rows
from kvemb.rows.hashing import Keys
from kvemb.variable import Variable


class StaticTable:
    """The rows of a variable, or those of some keys.

    missing: gives the rows of other keys. Raises ValueError for what JAX cannot hold without jax_enable_x64.
    """

    def __init__(self, variable: Variable, wanted: npt.ArrayLike | None, missing: Initializer) -> None:
        found, rows = _all_rows(variable) if wanted is None else _rows_of(variable, wanted)
        self._long = "int64" if _has_int64() else "int32"
        if self._long == "int32" and (variable.key_dtype.itemsize > 4 or not isinstance(missing, Fixed)):
            raise ValueError(
                f"JAX has no 64-bit integers, which keys of {variable.name!r}, or its initializer's rows, need: export "
                "with JAX_ENABLE_X64=1"
            )
        self.dim: int = variable.dim
        self._dtype = variable.value_dtype.name
        self._sums = "float64" if self._dtype == "float64" else "float32"
        self._missing = missing
        self._count = len(found)
        if not self._count:  # a search needs one
            found, rows = np.zeros(1, np.int64), np.zeros((1, self.dim), variable.value_dtype)
        name = variable.name.replace("/", "_")
        self.weights: list[keras.Variable] = [
            _weight(found.astype(self._long), f"{name}_keys"),
            _weight(rows, f"{name}_rows"),
        ]

    def look_up(self, request: Request, ids: Ids) -> Any:
        """Return the rows of a request, ids.shape + (dim,), or its bags, as a tensor of the request's dtype."""
        ops = keras.ops
        keys = self._keys(ids.ids, split=request.split)
        counts = None if ids.mask is None else ops.cast(ids.mask, "bool")
        if request.padding is not None:
            # Keys of uint64 are the int64 of the same bits.
            padding = request.padding - (1 << 64) * (request.padding >= 1 << 63)
            other = ops.not_equal(keys, padding)
            counts = other if counts is None else ops.logical_and(counts, other)
        rows = ops.reshape(self._rows(ops.reshape(keys, (-1,))), (*ops.shape(keys), self.dim))
        if counts is not None:
            rows = ops.where(ops.expand_dims(counts, -1), rows, ops.zeros_like(rows))
        if request.combiner is not None:
            rows = ops.cast(self._pooled(rows, keys, counts, request.combiner), self._dtype)
        return ops.cast(rows, request.dtype)

    def _keys(self, ids: Any, *, split: bool) -> Any:
        if not split:
            return keras.ops.cast(ids, self._long)
        if self._long == "int32":
            raise ValueError("pairs of int32 are joined to keys of 64 bits: export with JAX_ENABLE_X64=1")
        pairs = keras.ops.cast(ids, "int64")
        return keras.ops.bitwise_left_shift(pairs[..., 0], 32) | (pairs[..., 1] & 0xFFFFFFFF)

    def _rows(self, keys: Any) -> Any:
        """Return the rows of keys (n,) as a tensor (n, dim) of the value dtype."""
        ops, (known, rows) = keras.ops, self.weights
        at = ops.minimum(ops.searchsorted(known, keys), known.shape[0] - 1)
        found = ops.equal(ops.take(known, at, axis=0), keys)
        if not self._count:
            found = ops.zeros_like(found)
        there = ops.take(rows, at, axis=0)
        found = ops.expand_dims(found, -1)
        if isinstance(self._missing, Fixed):
            (row,) = self._missing.rows(np.zeros(1, np.int64), self.dim, self._dtype)
            return ops.where(found, there, ops.convert_to_tensor(row, self._dtype))

        def drawn() -> Any:
            return ops.where(found, there, ops.cast(draw_rows(self._missing, keys, self.dim), self._dtype))

        if keras.backend.backend() == "torch":  # whose exporter takes no condition on data here
            return drawn()
        return ops.cond(ops.all(found), lambda: there, drawn)

    def _pooled(self, rows: Any, keys: Any, counts: Any, combiner: str) -> Any:
        """Return rows (..., n, dim) pooled over n, in the order of backends/cpu_bags.py. counts (..., n): which do."""
        ops = keras.ops
        # JAX exports gradients, too, and a loop of any length has none.
        rows = ops.stop_gradient(ops.cast(rows, self._sums))
        first = ops.zeros((*ops.shape(keys)[:-1], self.dim), self._sums)
        total = ops.fori_loop(0, ops.shape(keys)[-1], lambda i, sums: sums + ops.take(rows, i, axis=-2), first)
        if combiner == "sum":
            return total
        ones = ops.ones_like(keys) if counts is None else ops.cast(counts, self._long)
        sizes = ops.cast(ops.sum(ones, axis=-1, keepdims=True), self._sums)
        if combiner == "sqrtn":
            sizes = ops.sqrt(sizes)
        return ops.where(sizes > 0, total / ops.maximum(sizes, 1), ops.zeros_like(total))


_tables: ContextVar[Mapping[Variable, StaticTable] | None] = ContextVar("kvemb.keras.static_tables", default=None)


@contextmanager
def in_place_of_stores(tables: Mapping[Variable, StaticTable]) -> Iterator[None]:
    """In the block, layers look rows up in static tables, which are their weights."""
    token = _tables.set(tables)
    try:
        yield
    finally:
        _tables.reset(token)


def static_tables() -> Mapping[Variable, StaticTable] | None:
    """Return the tables in place of stores, or None."""
    return _tables.get()


def look_up(tables: Mapping[Variable, StaticTable], requests: Sequence[Request], batch: Sequence[Ids]) -> list[Any]:
    """Return the rows of each request from the tables of their variables."""
    return [
        tables[request.variable].look_up(request, _dense(ids)) for request, ids in zip(requests, batch, strict=True)
    ]


def _dense(ids: Ids) -> Ids:
    """Return ids of one shape: those of a RaggedTensor with a mask."""
    if not hasattr(ids.ids, "to_tensor"):
        return ids
    import tensorflow as tf

    return Ids(ids.ids.to_tensor(), tf.sequence_mask(ids.ids.row_lengths()))


def _all_rows(variable: Variable) -> tuple[Keys, Any]:
    parts = [(keys.astype(np.int64, copy=False), rows) for keys, rows in variable.export_batches()]
    keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in parts)])
    rows = np.concatenate([np.empty((0, variable.dim), variable.value_dtype), *(rows for _, rows in parts)])
    return _in_order(keys, rows)


def _rows_of(variable: Variable, wanted: npt.ArrayLike) -> tuple[Keys, Any]:
    """Return the rows of those of the keys that have one."""
    rows, exists = variable.lookup(wanted, return_exists=True, touch=False)
    keys, first = np.unique(np.asarray(wanted)[exists].astype(variable.key_dtype).astype(np.int64), return_index=True)
    return keys, rows[exists][first]


def _in_order(keys: Keys, rows: Any) -> tuple[Keys, Any]:
    if (keys[1:] > keys[:-1]).all():
        return keys, rows
    order = np.argsort(keys)  # keys of uint64 are in another order
    return keys[order], rows[order]


def _has_int64() -> bool:
    if keras.backend.backend() != "jax":
        return True
    import jax

    return bool(jax.config.jax_enable_x64)


def _weight(array: npt.NDArray[Any], name: str) -> keras.Variable:
    # Exported models of JAX assign weights that are not trained after each call.
    trainable = keras.backend.backend() == "jax"
    return keras.Variable(array, dtype=array.dtype.name, trainable=trainable, autocast=False, name=name)
