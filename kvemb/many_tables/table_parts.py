"""The arguments of a call on many variables, checked: each variable's part of the call.

Nothing is read or changed here. Clusters (kvemb.cluster.store) check their calls with the same functions. `given` is a
key of the caller's dict: a variable or its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import byte_bounds

from kvemb.checks.brief import brief
from kvemb.defaults import DefaultStore
from kvemb.engine.given_keys import gradients, owned_keys
from kvemb.engine.keys import GivenKeys
from kvemb.engine.on_device import device_counts
from kvemb.engine.table import Table
from kvemb.handle import inside
from kvemb.variable import Variable

Given = TypeVar("Given")


class CountedKeys(NamedTuple):
    """Keys (n,) of a lookup, and how many uses each of them is (n,), int64; both in the same memory.

    The modules of frameworks look up the distinct keys of a batch in this way.
    """

    keys: Any
    counts: Any


class TablePart(NamedTuple):
    """The part of a call on one variable. values: gradients, or the rows to fill, (n, dim), beside the keys.

    counts: of CountedKeys; None: each occurrence is one use.
    """

    given: GivenKeys
    values: Any
    counts: Any = None

    @property
    def table(self) -> Table:
        """The variable."""
        return self.given.table

    @property
    def keys(self) -> Any:
        """The keys, flat (n,)."""
        return self.given.flat


def checked_parts(
    store: DefaultStore[Any], wanted: Mapping[Any, Given], check: Callable[[Table, Given], TablePart]
) -> dict[Any, TablePart]:
    """Return each variable's part. Raises before anything changes, naming the variable."""
    if not isinstance(wanted, Mapping):
        raise TypeError(f"expected a dict whose keys are variables or their names, got {brief(wanted)}")
    parts: dict[Any, TablePart] = {}
    seen: set[str] = set()
    variables = store.variables
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


def _table(store: DefaultStore[Any], given: Any, variables: Mapping[str, Variable]) -> Table:
    if isinstance(given, str):
        return inside(variables[given])
    if not isinstance(given, Variable):
        raise TypeError(f"expected a Variable or its name, got {brief(given)}")
    if given.resource_handle[0] is not store:
        raise ValueError(f"variable {given.name!r} belongs to another store, {given.resource_handle[0].path}")
    return inside(given)


def _with_arrays(wanted: Any, out: Any) -> dict[Any, tuple[npt.ArrayLike, npt.NDArray[Any] | None]]:
    """Return for each variable its keys and the array to fill, if it has one."""
    for what, given in (("keys", wanted), ("out", out)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} must be a dict whose keys are variables or their names, got {brief(given)}")
    if unknown := [given for given in out if given not in wanted]:
        raise ValueError(f"out has {brief(unknown[0])}, but keys does not; use the same variables or names in both")
    spans = sorted(byte_bounds(array) for array in out.values() if isinstance(array, np.ndarray) and array.size)
    if any(end > begin for (_, end), (begin, _) in pairwise(spans)):
        raise ValueError("two arrays of out share memory; give each variable an array of its own")
    return {given: (keys, out.get(given)) for given, keys in wanted.items()}


def part_to_read(table: Table, keys: npt.ArrayLike, out: npt.NDArray[Any] | None = None) -> TablePart:
    """Return a variable's part of a lookup. keys may be CountedKeys. out: the array for its rows; None: a new one."""
    counts = None
    if isinstance(keys, CountedKeys):
        keys, counts = keys
    given = owned_keys(table, keys)  # calls the partitioner, which may raise
    if counts is not None and given.on_device:
        counts = device_counts(table, counts)
    return TablePart(given, given.rows(out), counts)


def parts_to_read(
    store: DefaultStore[Any], wanted: Mapping[Any, npt.ArrayLike], out: Mapping[Any, npt.NDArray[Any]] | None
) -> dict[Any, TablePart]:
    """Return each variable's part of a lookup. out: the arrays that some of them fill. Raises as checked_parts does."""
    if out is None:
        return checked_parts(store, wanted, part_to_read)
    parts = checked_parts(store, _with_arrays(wanted, out), lambda table, given: part_to_read(table, *given))
    filled = [byte_bounds(array) for array in out.values() if isinstance(array, np.ndarray) and array.size]
    for part in parts.values():
        if part.given.on_device or not len(part.keys):
            continue
        begin, end = byte_bounds(part.keys)
        if any(begin < last and first < end for first, last in filled):
            raise ValueError(
                f"out must not share memory with the keys of {part.table.name!r}, which are read while it is filled"
            )
    return parts


def rows_of(parts: dict[Any, TablePart], out: Mapping[Any, npt.NDArray[Any]] | None) -> dict[Any, npt.NDArray[Any]]:
    """Return the rows that were looked up, in the shape of their keys; for variables in `out`, the given arrays."""
    found = {given: part.given.result(part.values) for given, part in parts.items()}
    return found if out is None else {**found, **out}


def part_to_prefetch(table: Table, keys: npt.ArrayLike) -> TablePart:
    """Return a variable's part of a prefetch."""
    return TablePart(owned_keys(table, keys), None)


def part_to_train(table: Table, given: tuple[npt.ArrayLike, npt.ArrayLike]) -> TablePart:
    """Return a variable's part of a step. given: keys and gradients."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"expected (keys, grads), got {brief(given)}")
    return TablePart(*gradients(table, *given))


def raise_named(name: str, error: Exception) -> NoReturn:
    """Raise the error with the variable's name: in the message of a TypeError or ValueError, in a note of others."""
    if type(error) in (TypeError, ValueError):
        raise cast(Any, type(error))(f"variable {name!r}: {error}") from error
    error.add_note(f"variable {name!r}")
    raise error
