"""The calls on a variable with arrays in a GPU's memory: checks of arguments, and results in the caller's library.

Keys, values and gradients must be on the variable's GPU, in its dtypes and C-contiguous; nothing is converted. Results
are arrays of the keys' library, on the keys' stream. A variable whose hot rows are elsewhere raises TypeError.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import DeviceCounts, DeviceRows
from kvemb.engine.keys import GivenKeys
from kvemb.engine.table import Table
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import SOME_GPU, DeviceArray, device_of, empty_like, in_kind, read_array
from kvemb.rows.hashing import Keys, Unique
from kvemb.threads.interrupts import uninterrupted


def rows_on(table: Table, device: str) -> DeviceRows:
    """Return the variable's rows on the device of an array. Raises TypeError if they are not on it."""
    device_rows = table.hot_tables.device_rows
    if device_rows is None or device not in (device_rows.device, SOME_GPU):
        devices = table.specification.devices
        where = f"are on {', '.join(devices)}" if devices != ("cpu",) else "are in the host's memory"
        raise TypeError(
            f"the arrays are on {device!r}, and the hot rows of variable {table.name!r} {where}: pass arrays in the "
            f"host's memory (keys.get(), or keys.cpu() for a tensor), or create the variable with devices={device!r}"
        )
    return device_rows


class DeviceKeys(GivenKeys):
    """Keys in a GPU's memory. Nothing is converted."""

    on_device = True

    def __init__(self, table: Table, keys: Any) -> None:
        self._given, self._rows = keys, rows_on(table, device_of(keys) or SOME_GPU)
        found = read_array(keys, table.schema.key_dtype, None, "keys", self._rows.interface)
        found = found.view_as(np.dtype(np.int64)) if found.dtype == np.uint64 else found
        self.table, self.shape, self.flat = table, found.shape, found.reshaped(found.size)

    def check_owners(self) -> None:
        pass  # they are on one GPU

    def in_host(self) -> Keys:
        return self.table.operations.keys_to_host(self.flat)

    def checked(self) -> Keys:
        return self.in_host()

    def rows(self, out: Any) -> DeviceArray:
        schema = self.table.schema
        shape = *self.shape, schema.dim
        if out is None:
            return self._new(shape, schema.value_dtype).reshaped(self.flat.size, schema.dim)
        filled = self.per_key(out, schema.value_dtype, "out", schema.dim)
        read_array(out, schema.value_dtype, shape, "out", self._rows.interface, written=True)
        return filled

    def flags(self) -> DeviceArray:
        return self._new(self.shape, np.dtype(np.bool_)).reshaped(self.flat.size)

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Return a new array of the keys' library; result() finds it again as the owner."""
        made = empty_like(self._given, shape, dtype, self._rows.empty)
        return replace(read_array(made, dtype, None, "values", self._rows.interface), owner=made)

    def result(self, filled: DeviceArray) -> Any:
        return in_kind(self._given, filled.owner)

    def per_key(self, data: Any, dtype: np.dtype[Any], what: str, *width: int) -> DeviceArray:
        device = device_of(data)
        if data is None or device not in (self._rows.device, SOME_GPU):
            where = "None" if data is None else f"one on {device!r}" if device else "one in the host's memory"
            raise TypeError(f"{what} must be an array on {self._rows.device!r}, as keys are, got {where}")
        found = read_array(data, dtype, (*self.shape, *width), what, self._rows.interface)
        return found.reshaped(self.flat.size, *width)

    def flags_per_key(self, data: Any, what: str) -> DeviceArray:
        return self.per_key(data, np.dtype(np.bool_), what)

    def copy(self) -> DeviceKeys:
        """Return a private copy for a later step, which is known not to change."""
        copied = copy.copy(self)
        copied.flat = self.table.operations.copy(self.flat)
        return copied

    def lookup(self, rows: DeviceArray, exists: DeviceArray | None, *, touch: bool) -> None:
        self.table.operations.lookup_on_device(self.flat, rows, exists, touch=touch)
        self.table.storage.ahead.looked_up()

    def pool(self, keys: Keys, bags: Bags, shape: tuple[int, ...], *, touch: bool) -> Any:
        """Return the pooled rows of bags, shape + (dim,), one for each bag. keys: in_host(), those in bags."""
        schema = self.table.schema
        values = self._new((*shape, schema.dim), schema.value_dtype)
        self.table.operations.pool_on_device(keys, bags, values.reshaped(bags.bag_count, schema.dim), touch=touch)
        return self.result(values)

    # Signal handlers wait until the rows on the device and those on the host have changed.

    def upsert(self, values: DeviceArray) -> None:
        with uninterrupted():
            self.table.operations.upsert_on_device(self.flat, values)

    def accum(self, old: DeviceArray, new: DeviceArray, exists: DeviceArray) -> None:
        with uninterrupted():
            self.table.operations.accum_on_device(self.flat, old, new, exists)

    def apply_gradients(self, grads: DeviceArray, **how: bool) -> None:
        with uninterrupted():
            self.table.operations.apply_gradients_on_device(self.flat, grads, **how)

    def prefetch(self, *, after_lookup: bool) -> None:
        self.table.operations.prefetch_on_device(self.flat, after_lookup=after_lookup)


def device_counts(table: Table, counts: Any) -> DeviceCounts:
    """Return how many uses each key of a lookup is: an int64 array (n,) on the device. Waits for their sum."""
    counted = read_array(counts, np.dtype(np.int64), None, "counts", rows_on(table, SOME_GPU).interface)
    return DeviceCounts(counted, int(counts.sum()))


def row_gradients(table: Table, ids: Any, keys: Keys, bags: Bags, grads: Any, shape: tuple[int, ...]) -> Any:
    """Return (keys (m,), gradients (m, dim)) from gradients of pooled rows. See pooling.Embeddings.row_gradients."""
    device_rows, schema = rows_on(table, device_of(ids) or SOME_GPU), table.schema
    given = read_array(grads, schema.slot_dtype, shape, "grads", device_rows.interface)
    distinct = Unique(keys)
    count = len(distinct.keys)
    found = empty_like(ids, (count,), schema.key_dtype, device_rows.empty)
    summed = empty_like(ids, (count, schema.dim), schema.slot_dtype, device_rows.empty)
    of_keys = read_array(found, schema.key_dtype, None, "keys", device_rows.interface)
    out = read_array(summed, schema.slot_dtype, None, "gradients", device_rows.interface)
    with table.storage.access.held(land=False), device_rows.on(out, of_keys, given):
        device_rows.row_gradients(distinct.sums, bags.of_keys(), bags, given, out)
        device_rows.spread(of_keys, np.arange(count), table.public(distinct.keys))
    table.operations.give_back(given)
    return in_kind(ids, found), in_kind(ids, summed)


def copied(table: Table, data: Any, what: str) -> npt.NDArray[Any]:
    """Return a copy in the host's memory of an array of any dtype. Raises TypeError, ValueError."""
    device_rows = rows_on(table, device_of(data) or SOME_GPU)
    found = read_array(data, None, None, what, device_rows.interface)
    return table.operations.to_host(found)[0]
