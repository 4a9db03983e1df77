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
from kvemb.engine.on_device import DeviceKeys, row_gradients
from kvemb.handle import inside
from kvemb.rows.bags import Bags
from kvemb.rows.hashing import Keys, Unique
from kvemb.rows.host_arrays import as_values
from kvemb.rows.names import Names, strings_of
from kvemb.variable import Variable


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings:
    """Hold the result of a pooled lookup, and pass gradients on to its rows.

    ``np.asarray(embeddings)`` is ``values``. If ids were on a GPU, ``values``, and the arguments and results of the
    methods, are arrays on that GPU, of the same library. Rows that were clipped by ``max_norm`` have no gradients
    there. Immutable; as thread-safe as the variable.

    Attributes:
        variable: The variable in which the ids were looked up.
        values: A new array in the value dtype, with one row for each id or each bag.
    """

    variable: Variable
    _keys: Keys | DeviceKeys  # DeviceKeys for single ids on a GPU: a copy
    _bags: Bags
    values: npt.NDArray[Any]
    _exists: npt.NDArray[np.bool_] | None
    _ids: Any = None  # the argument, if it is on a GPU
    _names: Names | None = None  # of string keys

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``values``."""
        return tuple(self.values.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<kvemb.Embeddings {self.shape} of {self.variable.name!r}>"

    def row_gradients(self, grads: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Convert gradients of the values to gradients of the rows.

        Gradients of all occurrences of an id are summed in order. With ``max_norm`` the current rows are looked up
        again, which counts as no use.

        Args:
            grads: Gradients of ``values``, of its shape, in float32, or float64 for float64 rows.

        Returns:
            A pair, as ``Variable.apply_gradients`` takes them: the distinct ids (m,), by first occurrence, and their
            gradients (m, dim).

        Raises:
            TypeError: As ``kvemb.Variable.apply_gradients``, for ``grads``.
            ValueError: ``grads`` has the wrong shape; or rows on a GPU were clipped.

        Example:
            >>> bags = kvemb.embedding_lookup_sparse(users, [1, 2, 1], offsets=[0, 2], combiner="sum")
            >>> ids, grads = bags.row_gradients([[1, 1], [10, 10]])
            >>> ids.tolist(), grads.tolist()
            ([1, 2], [[11.0, 11.0], [1.0, 1.0]])
        """
        table, keys = inside(self.variable), self._keys
        if isinstance(keys, DeviceKeys):
            keys = keys.in_host()
        if self._ids is not None:
            if self._bags.most_norm < math.inf:
                raise ValueError("rows that max_norm clipped have no gradients on a GPU; clip them in your framework")
            found: tuple[Any, Any] = row_gradients(table, self._ids, keys, self._bags, grads, self.shape)
            return found
        flat = as_values(grads, table.schema.slot_dtype, self.shape, "grads", "values.shape")
        divisors, distinct = self._bags.divisors, Unique(keys)
        if len(divisors):
            by = np.where(divisors == 0, np.inf, divisors)[:, None]
            flat = (flat / by).astype(table.schema.slot_dtype, copy=False)
        out = np.empty((len(distinct.keys), table.schema.dim), table.schema.slot_dtype)
        kernels = registry.row_kernels(table.limits)
        kernels.row_gradients(distinct.sums, self._bags.of_keys(), self._bags.weights, flat, out)
        public = table.public(distinct.keys) if self._names is None else strings_of(self._names[distinct.sums.first])
        if self._bags.most_norm < math.inf and len(public):
            _through_clipping(out, self.variable.lookup(public, touch=False), self._bags.most_norm)
        return public, out

    def apply_gradients(self, grads: npt.ArrayLike) -> None:
        """Take one optimizer step on the rows: ``Variable.apply_gradients`` of ``row_gradients(grads)``.

        Args:
            grads: Gradients of ``values``, of its shape, in float32, or float64 for float64 rows.

        Raises:
            TypeError: As ``kvemb.Variable.apply_gradients``, for ``grads``.
            ValueError: ``grads`` has the wrong shape; the variable is not trainable, or has no optimizer; or rows on a
                GPU were clipped.
            Closed: The store is closed.
            ReadOnly: The store is read-only.
            Poisoned: A write to disk failed, in this call or earlier.
        """
        keys = self._keys
        if isinstance(keys, DeviceKeys):  # the same result, without a copy of the keys
            keys.table.check_trainable()
            keys.apply_gradients(keys.per_key(grads, keys.table.schema.slot_dtype, "grads", self.variable.dim))
        else:
            self.variable.apply_gradients(*self.row_gradients(grads))

    def update(self, values: npt.ArrayLike) -> None:
        """Write back rows of ``embedding_lookup`` that you have trained yourself.

        With ``bp_v2``, the differences from the looked-up values are added, also for duplicate ids and beside other
        threads, so no update is lost. Without ``bp_v2``, the values replace the rows, and the last writer wins.

        Args:
            values: The new rows, of the shape and dtype of ``self.values``.

        Raises:
            ValueError: Rows were pooled or clipped; ``values`` has the wrong shape; or the rows are on a GPU, with
                ``bp_v2``: use ``Variable.accum`` there.
            TypeError: As ``kvemb.Variable.upsert``, for ``values``.
            Closed: The store is closed.
            ReadOnly: The store is read-only.
            Poisoned: A write to disk failed, in this call or earlier.

        Example:
            >>> found = kvemb.embedding_lookup(users, [1, 2])
            >>> found.update(found.values * 10)
            >>> users.lookup([1, 2]).tolist()
            [[10.0, 10.0], [20.0, 20.0]]
        """
        table, dim, given = inside(self.variable), self.variable.dim, self._keys
        if isinstance(given, DeviceKeys):
            if self.variable.bp_v2:
                raise ValueError("update() on a GPU needs a variable without bp_v2; call Variable.accum")
            given.upsert(given.per_key(values, table.schema.value_dtype, "values", dim))
            return
        if self._exists is None:
            raise ValueError("only the rows of embedding_lookup without max_norm can be written back")
        new = as_values(values, table.schema.value_dtype, self.shape, "values", "values.shape")
        keys = table.public(given) if self._names is None else strings_of(self._names)
        old = self.values.reshape(-1, dim)
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
