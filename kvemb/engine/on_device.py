"""The calls on a variable with arrays in a GPU's memory: checks of arguments, and results in the caller's library.

Keys, values and gradients must be on the variable's GPU, in its dtypes and C-contiguous; nothing is converted. Results
are arrays of the keys' library, on the keys' stream. A variable whose hot rows are elsewhere raises TypeError.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvemb.contracts import DeviceCounts, DeviceRows
from kvemb.engine.table import Table
from kvemb.rows.bags import Bags
from kvemb.rows.device_arrays import SOME_GPU, DeviceArray, device_of, empty_like, in_kind, read_array
from kvemb.rows.hashing import Keys, Unique


class DeviceLookup(NamedTuple):
    """The arrays of one lookup, on a device: keys (n,), out (n, dim), exists (n,) bool or None.

    made, flags: the caller's or new arrays, of which out and exists are views. given: the keys as the caller gave them.
    """

    keys: DeviceArray
    out: DeviceArray
    exists: DeviceArray | None
    made: Any
    flags: Any
    given: Any

    @property
    def rows(self) -> Any:
        """The lookup's result, once it is filled."""
        return in_kind(self.given, self.made)


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


def keys_on_device(table: Table, keys: Any) -> DeviceArray:
    """Return keys of any shape that are on a device, as a DeviceArray; a DeviceArray is returned as it is.

    Raises TypeError, ValueError.
    """
    if isinstance(keys, DeviceArray):
        return keys
    device_rows = rows_on(table, device_of(keys) or SOME_GPU)
    found = read_array(keys, table.schema.key_dtype, None, "keys", device_rows.interface)
    return found.view_as(np.dtype(np.int64)) if found.dtype == np.uint64 else found


def beside(table: Table, keys: DeviceArray, data: Any, dtype: np.dtype[Any], what: str, *width: int) -> DeviceArray:
    """Return an array of keys.shape + width that belongs to keys, as (n, *width). Raises TypeError, ValueError."""
    device_rows, device = table.hot_tables.device_rows, device_of(data)
    assert device_rows is not None
    if data is None or device not in (device_rows.device, SOME_GPU):
        where = "None" if data is None else f"one on {device!r}" if device else "one in the host's memory"
        raise TypeError(f"{what} must be an array on {device_rows.device!r}, as keys are, got {where}")
    found = read_array(data, dtype, (*keys.shape, *width), what, device_rows.interface)
    return found.reshaped(keys.size, *width)


def device_lookup(table: Table, keys: Any, out: Any, *, return_exists: bool = False) -> DeviceLookup:
    """Check and return the arrays of a lookup. out: an array to fill; None: a new one. Raises TypeError, ValueError."""
    found, schema = keys_on_device(table, keys), table.schema
    device_rows = rows_on(table, SOME_GPU)
    shape = *found.shape, schema.dim
    made = empty_like(keys, shape, schema.value_dtype, device_rows.empty) if out is None else out
    filled = beside(table, found, made, schema.value_dtype, "out", schema.dim)
    if out is not None:
        read_array(out, schema.value_dtype, shape, "out", device_rows.interface, written=True)
    flags = exists = None
    if return_exists:
        flags = empty_like(keys, found.shape, np.dtype(np.bool_), device_rows.empty)
        exists = beside(table, found, flags, np.dtype(np.bool_), "exists")
    return DeviceLookup(found.reshaped(found.size), filled, exists, made, flags, keys)


def device_counts(table: Table, counts: Any) -> DeviceCounts:
    """Return how many uses each key of a lookup is: an int64 array (n,) on the device. Waits for their sum."""
    counted = read_array(counts, np.dtype(np.int64), None, "counts", rows_on(table, SOME_GPU).interface)
    return DeviceCounts(counted, int(counts.sum()))


def lookup(table: Table, keys: Any, out: Any, *, return_exists: bool, touch: bool) -> Any:
    """See Variable.lookup."""
    given = device_lookup(table, keys, out, return_exists=return_exists)
    table.operations.lookup_on_device(given.keys, given.out, given.exists, touch=touch)
    table.storage.ahead.looked_up()
    rows = given.made if out is not None else given.rows
    return (rows, in_kind(keys, given.flags)) if return_exists else rows


def lookup_copied(table: Table, ids: Any, *, touch: bool) -> tuple[DeviceArray, Any]:
    """Return a private copy of keys, for a later step, and their rows. The copy is known not to change."""
    given = device_lookup(table, ids, None)
    copied = table.operations.copy(keys_on_device(table, ids))
    table.operations.lookup_on_device(copied.reshaped(copied.size), given.out, None, touch=touch)
    table.storage.ahead.looked_up()
    return copied, given.rows


def prefetch(table: Table, keys: Any, *, after_lookup: bool) -> None:
    """See Variable.prefetch."""
    found = keys_on_device(table, keys)
    table.operations.prefetch_on_device(found.reshaped(found.size), after_lookup=after_lookup)


def upsert(table: Table, keys: Any, values: Any) -> None:
    """See Variable.upsert."""
    found, schema = keys_on_device(table, keys), table.schema
    given = beside(table, found, values, schema.value_dtype, "values", schema.dim)
    table.operations.upsert_on_device(found.reshaped(found.size), given)


def accum(table: Table, keys: Any, old: Any, new: Any, exists: Any) -> None:
    """See Variable.accum."""
    found, schema = keys_on_device(table, keys), table.schema
    before = beside(table, found, old, schema.value_dtype, "old_values", schema.dim)
    after = beside(table, found, new, schema.value_dtype, "new_values", schema.dim)
    believed = beside(table, found, exists, np.dtype(np.bool_), "exists")
    table.operations.accum_on_device(found.reshaped(found.size), before, after, believed)


def gradients(table: Table, keys: Any, grads: Any) -> tuple[DeviceArray, DeviceArray]:
    """Return keys (n,), and their gradients (n, dim). Raises TypeError, ValueError."""
    table.check_trainable()
    found, schema = keys_on_device(table, keys), table.schema
    return found.reshaped(found.size), beside(table, found, grads, schema.slot_dtype, "grads", schema.dim)


def apply_gradients(table: Table, keys: Any, grads: Any) -> None:
    """See Variable.apply_gradients."""
    table.operations.apply_gradients_on_device(*gradients(table, keys, grads))


def pooled(table: Table, ids: Any, keys: Keys, bags: Bags, shape: tuple[int, ...], *, touch: bool) -> Any:
    """Return the pooled rows of bags, of shape + (dim,).

    ids: the keys as the caller gave them. keys (n,): a copy of them. shape: the result's shape without its last axis;
    its size is the number of bags.
    """
    device_rows, schema = rows_on(table, device_of(ids) or SOME_GPU), table.schema
    values = empty_like(ids, (*shape, schema.dim), schema.value_dtype, device_rows.empty)
    out = read_array(values, schema.value_dtype, None, "values", device_rows.interface)
    table.operations.pool_on_device(keys, bags, out.reshaped(bags.bag_count, schema.dim), touch=touch)
    return in_kind(ids, values)


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
    with table.storage.held(rows=False), device_rows.on(out, of_keys, given):
        device_rows.row_gradients(distinct.sums, bags.of_keys(), bags, given, out)
        device_rows.spread(of_keys, np.arange(count), table.public(distinct.keys))
    table.operations.give_back(given)
    return in_kind(ids, found), in_kind(ids, summed)


def copied_keys(table: Table, keys: Any) -> tuple[tuple[int, ...], Keys]:
    """Return the shape of keys, and a copy of them in the host's memory (n,)."""
    found = keys_on_device(table, keys)
    return found.shape, table.operations.keys_to_host(found.reshaped(found.size))


def copied(table: Table, data: Any, what: str) -> npt.NDArray[Any]:
    """Return a copy in the host's memory of an array of any dtype. Raises TypeError, ValueError."""
    device_rows = rows_on(table, device_of(data) or SOME_GPU)
    found = read_array(data, None, None, what, device_rows.interface)
    return table.operations.to_host(found)[0]
