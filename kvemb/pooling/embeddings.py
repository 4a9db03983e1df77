"""The result of a lookup of kvemb.pooling: the values, and the gradients of their rows.

Immutable; as thread-safe as the variable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb import registry
from kvemb.engine import on_device
from kvemb.handle import inside
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import DeviceArray
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.host_arrays import as_values
from kvemb.variable import Variable


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """The result of a lookup. values: a fresh array in the value dtype, one row for each id or each bag.

    np.asarray(embeddings) is values. variable: the one they were looked up in. If ids are on a GPU, values and the
    arguments and results of the methods are arrays on that GPU, of the same library; rows that were clipped by max_norm
    have no gradients there.
    """

    variable: Variable
    _keys: Keys | DeviceArray  # a DeviceArray for single ids on a GPU
    _bags: Bags
    values: npt.NDArray[Any]
    _exists: npt.NDArray[np.bool_] | None
    _ids: Any = None  # the argument, if it is on a GPU

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of values."""
        return tuple(self.values.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<kvemb.Embeddings {self.shape} of {self.variable.name!r}>"

    def row_gradients(self, grads: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the gradients of the rows, from those of the values: (keys (m,), gradients (m, dim)).

        grads: of values.shape, in float32 (float64 for float64 rows). keys: the distinct ids, by first occurrence; the
        gradients of all occurrences of an id are summed in order. With max_norm the current rows are looked up again,
        without counting a use. Raises TypeError, ValueError.
        """
        table, keys = inside(self.variable), self._keys
        if isinstance(keys, DeviceArray):
            keys = table.operations.keys_to_host(keys.reshaped(keys.size))
        if self._ids is not None:
            if self._bags.most_norm < math.inf:
                raise ValueError("rows that max_norm clipped have no gradients on a GPU; clip them in your framework")
            found: tuple[Any, Any] = on_device.row_gradients(table, self._ids, keys, self._bags, grads, self.shape)
            return found
        flat = as_values(grads, table.schema.slot_dtype, self.shape, "grads", "values.shape")
        divisors, distinct = self._bags.divisors, Unique(keys)
        if len(divisors):
            by = np.where(divisors == 0, np.inf, divisors)[:, None]
            flat = (flat / by).astype(table.schema.slot_dtype, copy=False)
        out = np.empty((len(distinct.keys), table.schema.dim), table.schema.slot_dtype)
        kernels = registry.row_kernels(table.limits)
        kernels.row_gradients(distinct.sums, self._bags.of_keys(), self._bags.weights, flat, out)
        public = table.public(distinct.keys)
        if self._bags.most_norm < math.inf and len(public):
            _through_clipping(out, self.variable.lookup(public, touch=False), self._bags.most_norm)
        return public, out

    def apply_gradients(self, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows: Variable.apply_gradients of row_gradients(grads). Raises as they do."""
        if isinstance(self._keys, DeviceArray):  # the same result, without a copy of the keys
            on_device.apply_gradients(inside(self.variable), self._keys, grads)
        else:
            self.variable.apply_gradients(*self.row_gradients(grads))

    def update(self, values: npt.ArrayLike) -> None:
        """Write back the rows of embedding_lookup after the caller has trained them itself.

        values: of values.shape. With bp_v2 the differences from the looked-up values are added, including those of
        duplicate ids and of other threads, so that no update is lost; without bp_v2 values replace the rows, and the
        last writer wins. Raises ValueError for rows that were pooled or clipped, and as Variable.upsert.
        """
        table, dim = inside(self.variable), self.variable.dim
        if isinstance(self._keys, DeviceArray):
            if self.variable.bp_v2:
                raise ValueError("on a GPU, rows with bp_v2 are written back with Variable.accum")
            on_device.upsert(table, self._keys, values)
            return
        if self._exists is None:
            raise ValueError("only the rows of embedding_lookup without max_norm can be written back")
        new = as_values(values, table.schema.value_dtype, self.shape, "values", "values.shape")
        keys, old = table.public(self._keys), self.values.reshape(-1, dim)
        if not self.variable.bp_v2:
            self.variable.upsert(keys, new)
            return
        absent = ~self._exists
        if absent.any():  # create them with the looked-up values, unless another thread has done so
            self.variable.accum(keys[absent], old[absent], old[absent], np.zeros(int(absent.sum()), np.bool_))
        self.variable.accum(keys, old, new, np.ones(len(keys), np.bool_))


def _through_clipping(grads: npt.NDArray[Any], rows: npt.NDArray[Any], most_norm: float) -> None:
    """Convert gradients (m, dim) of clipped rows to those of the rows (m, dim), in place.

    For a row w longer than c, with unit vector u, the derivative of c u is c / |w| (1 - u u^T).
    """
    wide = rows.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    long = norms > most_norm
    unit, given = wide[long] / norms[long, None], grads[long].astype(np.float64)
    along = np.einsum("ij,ij->i", unit, given)[:, None]
    grads[long] = (most_norm / norms[long])[:, None] * (given - along * unit)
