"""One call on many variables of a store: all arguments are checked first, then each variable's part runs.

The result is that of one call on each variable, in any order, because variables share no rows. Large calls are spread
over threads: work on hot rows over the cores, cold reads, which wait for the disk, over more threads. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from kvemb.catalog import VariableMap, opened
from kvemb.checks.brief import brief
from kvemb.contracts import Values
from kvemb.engine import on_device
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.handle import StoreHandle, inside
from kvemb.interrupts import uninterrupted
from kvemb.operations.reads import MissedKeys
from kvemb.parallel import MAX_THREADS, cores, run_each
from kvemb.rows.device_arrays import device_of
from kvemb.rows.hashing import Keys
from kvemb.rows.host_arrays import rows_to_fill
from kvemb.variable import Variable

Given = TypeVar("Given")
_NO_VALUES: Values = np.empty((0, 0))
_NO_KEYS: Keys = np.empty(0, np.int64)


class TablePart(NamedTuple):
    """The part of a call on one variable. keys: flat (n,). values: gradients, or the rows to fill, (n, dim).

    on_device: used instead of keys and values if the caller's arrays are on a GPU: a lookup, or keys and gradients.
    """

    table: Table
    shape: tuple[int, ...]
    keys: Keys
    values: Values
    on_device: Any = None


def lookup(
    store: StoreHandle[Engine],
    wanted: Mapping[Any, npt.ArrayLike],
    *,
    touch: bool,
    out: Mapping[Any, npt.NDArray[Any]] | None = None,
) -> dict[Any, npt.NDArray[Any]]:
    """See Store.lookup."""
    parts = parts_to_read(store, wanted, out, _variables(store))
    tables = [part.table for part in parts.values()]
    while True:
        refreshes = [table.storage.refreshes for table in tables]
        _read([part for part in parts.values() if part.on_device is None], touch)
        _read_on_device([part for part in parts.values() if part.on_device is not None], touch)
        for table in tables:
            table.storage.ahead.looked_up()
        if refreshes == [table.storage.refreshes for table in tables]:  # else the store moved to a later durable point
            break
    return rows_of(parts, out)


def apply_gradients(store: StoreHandle[Engine], wanted: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
    """See Store.apply_gradients."""
    parts = list(checked(store, wanted, to_train, _variables(store)).values())
    inside(store).state.check_writable()

    def step(part: TablePart) -> Callable[[], None]:
        operations = part.table.operations
        if part.on_device is not None:
            return lambda: operations.apply_gradients_on_device(*part.on_device, acknowledge=False)
        return lambda: operations.apply_gradients(part.keys, part.values, acknowledge=False)

    failures = run_each([step(part) for part in parts], _threads(parts))
    for part in parts:
        part.table.storage.acknowledge()  # the first call waits for the log, which they share
    _raise_first(parts, failures)


def prefetch(store: StoreHandle[Engine], wanted: Mapping[Any, npt.ArrayLike], after_lookup: bool) -> None:
    """See Store.prefetch."""
    for part in checked(store, wanted, to_prefetch, _variables(store)).values():
        if part.on_device is not None:
            part.table.operations.prefetch_on_device(part.on_device, after_lookup=after_lookup)
        else:
            part.table.operations.prefetch(part.keys, after_lookup)


# Checking.


def _variables(store: StoreHandle[Engine]) -> Mapping[str, Variable]:
    return VariableMap(inside(store).names, lambda name: opened(store, name))


def checked(
    store: StoreHandle[Any],
    wanted: Mapping[Any, Given],
    check: Callable[[Table, Given], TablePart],
    variables: Mapping[str, Variable],
) -> dict[Any, TablePart]:
    """Return each variable's part. Raises before anything changes, naming the variable. variables: the store's."""
    if not isinstance(wanted, Mapping):
        raise TypeError(f"expected a dict from variable, or its name, to keys, got {brief(wanted)}")
    parts: dict[Any, TablePart] = {}
    seen: set[str] = set()
    for given, arguments in wanted.items():
        table = _table(store, given, variables)
        if table.name in seen:
            raise ValueError(f"variable {table.name!r} is given twice; join its keys to one array")
        seen.add(table.name)
        try:
            parts[given] = check(table, arguments)
        except Exception as error:
            raise_named(table.name, error)
    return parts


def _table(store: StoreHandle[Any], given: Any, variables: Mapping[str, Variable]) -> Table:
    if isinstance(given, str):
        return inside(variables[given])
    if not isinstance(given, Variable):
        raise TypeError(f"expected a Variable or its name, got {brief(given)}")
    if given.resource_handle[0] is not store:
        raise ValueError(f"variable {given.name!r} is of another store, {given.resource_handle[0].path}")
    return inside(given)


def _with_arrays(wanted: Any, out: Any) -> dict[Any, tuple[npt.ArrayLike, npt.NDArray[Any] | None]]:
    """Return for each variable its keys and the array to fill, if it has one."""
    for what, given in (("keys", wanted), ("out", out)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a dict from variable, or its name, got {brief(given)}")
    if unknown := [given for given in out if given not in wanted]:
        raise ValueError(f"out has {brief(unknown[0])}, and keys do not: give both in the same way")
    spans = sorted(byte_bounds(array) for array in out.values() if isinstance(array, np.ndarray) and array.size)
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise ValueError("out has one array for two variables, or two that share memory; give each its own")
    return {given: (keys, out.get(given)) for given, keys in wanted.items()}


def to_read(table: Table, keys: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> TablePart:
    """Return a variable's part of a lookup. out: the array for its rows; None: a new one."""
    if device_of(keys) is not None:
        given = on_device.device_lookup(table, keys, out)
        return TablePart(table, given.keys.shape, _NO_KEYS, _NO_VALUES, given)
    shape, flat = table.flat_and_owned(keys)  # calls the partitioner, which may raise
    schema = table.schema
    return TablePart(table, shape, flat, rows_to_fill(out, schema.value_dtype, (*shape, schema.dim), flat))


def parts_to_read(
    store: StoreHandle[Any],
    wanted: Mapping[Any, npt.ArrayLike],
    out: Mapping[Any, npt.NDArray[Any]] | None,
    variables: Mapping[str, Variable],
) -> dict[Any, TablePart]:
    """Return each variable's part of a lookup. out: the arrays that some of them fill. Raises as checked does."""
    if out is None:
        return checked(store, wanted, to_read, variables)
    parts = checked(store, _with_arrays(wanted, out), lambda table, given: to_read(table, *given), variables)
    filled = [byte_bounds(array) for array in out.values() if isinstance(array, np.ndarray) and array.size]
    for part in parts.values():
        begin, end = byte_bounds(part.keys)
        if len(part.keys) and any(begin < last and first < end for first, last in filled):
            raise ValueError(f"out must not share memory with the keys of {part.table.name!r}, read while it is filled")
    return parts


def rows_of(parts: dict[Any, TablePart], out: Mapping[Any, npt.NDArray[Any]] | None) -> dict[Any, npt.NDArray[Any]]:
    """Return the rows that were looked up, in the shape of their keys; for variables in `out`, the given arrays."""
    found = {
        given: part.values.reshape(*part.shape, part.table.schema.dim)
        if part.on_device is None
        else part.on_device.rows
        for given, part in parts.items()
    }
    return found if out is None else {**found, **out}


def to_prefetch(table: Table, keys: npt.ArrayLike) -> TablePart:
    """Return a variable's part of a prefetch."""
    if device_of(keys) is not None:
        found = on_device.keys_on_device(table, keys)
        return TablePart(table, found.shape, _NO_KEYS, _NO_VALUES, found.reshaped(found.size))
    return TablePart(table, *table.flat_and_owned(keys), _NO_VALUES)


def to_train(table: Table, given: tuple[npt.ArrayLike, npt.ArrayLike]) -> TablePart:
    """Return a variable's part of a step. given: keys and gradients."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"expected (keys, grads), got {brief(given)}")
    if device_of(given[0]) is not None:
        keys, grads = on_device.gradients(table, *given)
        return TablePart(table, keys.shape, _NO_KEYS, _NO_VALUES, (keys, grads))
    return TablePart(table, *table.gradients(*given))


# Running.


def _read(parts: list[TablePart], touch: bool) -> None:
    threads = _threads(parts)
    left = _find_at_once(parts, touch) if threads == 1 else _find(parts, touch, threads)
    if not left:
        return

    def fill(part: TablePart, found: MissedKeys) -> Callable[[], None]:
        return lambda: part.table.operations.lookup_cold(part.keys, found, part.values, None)

    reads, cold = sum(len(found.positions) for _, found in left), [part for part, _ in left]
    pays = bool(cold) and reads >= cold[0].table.storage.limits.cold_parallel_keys
    _raise_first(cold, run_each([fill(*each) for each in left], MAX_THREADS if pays else 1))


def _read_on_device(parts: list[TablePart], touch: bool) -> None:
    for part in parts:
        wanted = part.on_device
        try:
            part.table.operations.lookup_on_device(wanted.keys, wanted.out, None, touch=touch)
        except Exception as error:
            raise_named(part.table.name, error)


def _find_at_once(parts: list[TablePart], touch: bool) -> list[tuple[TablePart, MissedKeys]]:
    """Look up the hot rows of each part; return what is left for lookup_cold.

    A small call spends most of its time on taking locks, so the locks of variables that are free are taken in one
    block.
    """
    left: list[tuple[TablePart, MissedKeys]] = []
    busy: list[TablePart] = []
    with uninterrupted():
        for part in parts:
            try:
                missed = part.table.operations.lookup_hot_at_once(part.keys, part.values, touch=touch)
            except Exception as error:
                raise_named(part.table.name, error)
            if missed is False:
                busy.append(part)
            elif missed is not None:
                left.append((part, missed))
    return left + _find(busy, touch, 1) if busy else left


def _find(parts: list[TablePart], touch: bool, threads: int) -> list[tuple[TablePart, MissedKeys]]:
    """Do what _find_at_once does, but wait for variables in use. threads: how many threads do the work."""
    missed: list[MissedKeys | None] = [None] * len(parts)

    def find(number: int, part: TablePart) -> Callable[[], None]:
        def found() -> None:
            missed[number] = part.table.operations.lookup_hot(part.keys, part.values, None, touch=touch)

        return found

    failures = run_each([find(number, part) for number, part in enumerate(parts)], threads)
    _raise_first(parts, failures)
    return [(part, found) for part, found in zip(parts, missed, strict=True) if found is not None]


def _threads(parts: list[TablePart]) -> int:
    """Return how many threads work on hot rows: one, unless the call has enough keys.

    Also one for arrays on a GPU, because their stream may belong to the calling thread.
    """
    keys = sum(len(part.keys) for part in parts)
    if not parts or any(part.on_device is not None for part in parts):
        return 1
    return cores() if keys >= parts[0].table.storage.limits.hot_parallel_keys else 1


def _raise_first(parts: list[TablePart], failures: list[Exception | None]) -> None:
    for part, failure in zip(parts, failures, strict=True):
        if failure is not None:
            raise_named(part.table.name, failure)


def raise_named(name: str, error: Exception) -> NoReturn:
    """Raise the error with the variable's name: in the message of a TypeError or ValueError, in a note of others."""
    if type(error) in (TypeError, ValueError):
        raise cast(Any, type(error))(f"variable {name!r}: {error}") from error
    error.add_note(f"variable {name!r}")
    raise error
