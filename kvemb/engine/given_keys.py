"""The keys of a call: integers in the host's memory or in a GPU's, or strings: given_keys() asks which, once a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import Mask, Values
from kvemb.engine.keys import GivenKeys
from kvemb.engine.on_device import DeviceKeys
from kvemb.engine.table import Table
from kvemb.rows.device_arrays import device_of
from kvemb.rows.hashing import Keys
from kvemb.rows.host_arrays import as_keys, as_values, rows_to_fill
from kvemb.rows.names import check_names, distinct_names, named_keys, names_behind, with_names
from kvemb.rows.tensors import plain


class HostKeys(GivenKeys):
    """Keys in the host's memory. They are converted if no information is lost; arrays of values are cast."""

    on_device = False

    def __init__(self, table: Table, keys: npt.ArrayLike) -> None:
        array = as_keys(keys, table.schema.key_dtype)
        self.table, self.shape = table, array.shape
        self.flat: Keys = array if array.ndim == 1 else array.reshape(-1)

    def check_owners(self) -> None:
        self.table.hot_tables.partition.devices_of(self.flat)

    def in_host(self) -> Keys:
        return self.flat

    def checked(self) -> Keys:
        return self.flat

    def rows(self, out: npt.NDArray[Any] | None) -> Values:
        schema = self.table.schema
        if out is None:
            return np.empty((len(self.flat), schema.dim), schema.value_dtype)
        return rows_to_fill(out, schema.value_dtype, (*self.shape, schema.dim), self.flat)

    def flags(self) -> Mask:
        return np.empty(len(self.flat), np.bool_)

    def result(self, filled: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return filled if len(self.shape) == 1 else filled.reshape((*self.shape, *filled.shape[1:]))

    def per_key(self, data: Any, dtype: np.dtype[Any], what: str, width: int) -> Values:
        return as_values(data, dtype, (*self.shape, width), what)

    def flags_per_key(self, data: Any, what: str) -> Mask:
        given = plain(data, np.dtype(np.bool_), what)
        flags = np.asarray(given, None if np.size(given) else np.bool_)
        if flags.dtype != np.bool_:
            raise TypeError(f"{what} must be bool, got {flags.dtype.name}")
        if flags.shape != self.shape:
            raise ValueError(f"{what} must have the shape of keys, {self.shape}, got {flags.shape}")
        return flags.reshape(-1)

    def lookup(self, rows: Values, exists: Mask | None, *, touch: bool) -> None:
        self.table.operations.lookup(self.flat, rows, exists, touch=touch)

    def upsert(self, values: Values) -> None:
        self.table.operations.upsert(self.flat, values)

    def accum(self, old: Values, new: Values, exists: Mask) -> None:
        self.table.operations.accum(self.flat, old, new, exists)

    def apply_gradients(self, grads: Values, **how: bool) -> None:
        self.table.operations.apply_gradients(self.flat, grads, **how)

    def prefetch(self, *, after_lookup: bool) -> None:
        self.table.operations.prefetch(self.flat, after_lookup)


class GivenStrings(HostKeys, GivenKeys):
    """Strings: flat has their hashes. Their names, of `named`, stand behind rows, values and gradients."""

    def __init__(self, table: Table, keys: Any) -> None:
        self.named = named_keys(keys, table.schema.name_bytes)
        self.table, self.shape, self.flat = table, self.named.shape, self.named.keys
        self._out: npt.NDArray[Any] | None = None

    def checked(self) -> Keys:
        self.table.check_names(self.named)
        return self.flat

    def rows(self, out: npt.NDArray[Any] | None) -> Values:
        self._out = None if out is None else super().rows(out)
        return np.empty((len(self.flat), self.table.schema.width), self.table.schema.value_dtype)

    def result(self, filled: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if filled.ndim == 1:  # flags
            return super().result(filled)
        dim = self.table.schema.dim
        check_names(self.flat, self.named.names, names_behind(filled, dim))
        if self._out is None:
            return super().result(np.ascontiguousarray(filled[:, :dim]))
        self._out[:] = filled[:, :dim]
        return super().result(self._out)

    def per_key(self, data: Any, dtype: np.dtype[Any], what: str, width: int) -> Values:
        values = super().per_key(data, dtype, what, width)
        distinct_names(self.named)
        return with_names(values, self.named.names)


def given_keys(table: Table, keys: Any) -> GivenKeys:
    """Return the keys of a call on a variable, of any shape, wherever they are. Raises TypeError, ValueError."""
    if table.schema.name_bytes:
        return GivenStrings(table, keys)
    return HostKeys(table, keys) if device_of(keys) is None else DeviceKeys(table, keys)


def owned_keys(table: Table, keys: Any) -> GivenKeys:
    """Do what given_keys does, and call the partitioner, so that its errors are raised before anything changes."""
    given = given_keys(table, keys)
    given.check_owners()
    return given


def gradients(table: Table, keys: Any, grads: Any) -> tuple[GivenKeys, Any]:
    """Return keys, and their gradients (n, dim) in the slot dtype.

    Raises TypeError; ValueError, also where the variable cannot be trained.
    """
    table.check_trainable()
    given = given_keys(table, keys)
    given.check_owners()
    return given, given.per_key(grads, table.schema.slot_dtype, "grads", table.schema.dim)
