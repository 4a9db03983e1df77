"""One call on many variables of a store: all arguments are checked first, then each variable's part runs.

The result is that of one call for each variable, in any order: they share no rows. Parts are spread over threads where
that pays: hot rows over the cores, cold reads, which wait for the disk, over more. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
import numpy.typing as npt

from kvemb.catalog import VariableMap, opened
from kvemb.checks.brief import brief
from kvemb.contracts import Values
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.handle import Place, inside
from kvemb.parallel import MOST_THREADS, cores, run_each
from kvemb.rows.hashing import Keys
from kvemb.tiers.reads import Missed
from kvemb.variable import Variable

Given = TypeVar("Given")


class Part(NamedTuple):
    """What a call does to one variable. keys: flat (n,); values: gradients, or the rows to fill, (n, dim)."""

    table: Table
    shape: tuple[int, ...]
    keys: Keys
    values: Values


def lookup(store: Place[Engine], wanted: Mapping[Any, npt.ArrayLike], *, touch: bool) -> dict[Any, npt.NDArray[Any]]:
    """See Store.lookup."""
    parts = checked(store, wanted, to_read, _variables(store))
    tables = [part.table for part in parts.values()]
    while True:
        shown = [table.storage.shown for table in tables]
        _read(list(parts.values()), touch)
        if shown == [table.storage.shown for table in tables]:  # else the store moved to its next durable point
            break
    return {given: part.values.reshape(*part.shape, part.table.schema.dim) for given, part in parts.items()}


def apply_gradients(store: Place[Engine], wanted: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
    """See Store.apply_gradients."""
    parts = list(checked(store, wanted, to_train, _variables(store)).values())
    inside(store).state.check_writable()

    def step(part: Part) -> Callable[[], None]:
        return lambda: part.table.operations.apply_gradients(part.keys, part.values, acknowledge=False)

    failures = run_each([step(part) for part in parts], _threads(parts))
    for part in parts:
        part.table.storage.acknowledge()  # the first one waits for the log, which they share
    _raise_first(parts, failures)


def prefetch(store: Place[Engine], wanted: Mapping[Any, npt.ArrayLike]) -> None:
    """See Store.prefetch."""
    for part in checked(store, wanted, to_read, _variables(store)).values():
        part.table.operations.prefetch(part.keys)


# Checking.


def _variables(store: Place[Engine]) -> Mapping[str, Variable]:
    return VariableMap(inside(store).names, lambda name: opened(store, name))


def checked(
    store: Place[Any],
    wanted: Mapping[Any, Given],
    check: Callable[[Table, Given], Part],
    variables: Mapping[str, Variable],
) -> dict[Any, Part]:
    """Return each variable's part. Raises before anything changes, naming the variable. variables: of the store."""
    if not isinstance(wanted, Mapping):
        raise TypeError(f"expected a dict from variable, or its name, to keys, got {brief(wanted)}")
    parts: dict[Any, Part] = {}
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


def _table(store: Place[Any], given: Any, variables: Mapping[str, Variable]) -> Table:
    if isinstance(given, str):
        return inside(variables[given])
    if not isinstance(given, Variable):
        raise TypeError(f"expected a Variable or its name, got {brief(given)}")
    if given.resource_handle[0] is not store:
        raise ValueError(f"variable {given.name!r} is of another store, {given.resource_handle[0].path}")
    return inside(given)


def to_read(table: Table, keys: npt.ArrayLike) -> Part:
    """Return what a lookup does, and memory for its rows."""
    shape, flat = table.flat_and_owned(keys)  # a partitioner that raises does so now
    return Part(table, shape, flat, np.empty((len(flat), table.schema.dim), table.schema.value_dtype))


def to_train(table: Table, given: tuple[npt.ArrayLike, npt.ArrayLike]) -> Part:
    """Return what a step does. given: keys and gradients."""
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"expected (keys, grads), got {brief(given)}")
    return Part(table, *table.gradients(*given))


# Running.


def _read(parts: list[Part], touch: bool) -> None:
    missed: list[Missed | None] = [None] * len(parts)

    def find(number: int, part: Part) -> Callable[[], None]:
        def found() -> None:
            missed[number] = part.table.operations.lookup_hot(part.keys, part.values, None, touch=touch)

        return found

    failures = run_each([find(number, part) for number, part in enumerate(parts)], _threads(parts))
    _raise_first(parts, failures)
    left = [(part, found) for part, found in zip(parts, missed, strict=True) if found is not None]

    def fill(part: Part, found: Missed) -> Callable[[], None]:
        return lambda: part.table.operations.lookup_cold(part.keys, found, part.values, None)

    reads, cold = sum(len(found.positions) for _, found in left), [part for part, _ in left]
    pays = bool(cold) and reads >= cold[0].table.storage.limits.cold_parallel_keys
    _raise_first(cold, run_each([fill(*each) for each in left], MOST_THREADS if pays else 1))


def _threads(parts: list[Part]) -> int:
    """Return over how many threads work on hot rows is spread: one, unless there is enough of it."""
    keys = sum(len(part.keys) for part in parts)
    return cores() if parts and keys >= parts[0].table.storage.limits.hot_parallel_keys else 1


def _raise_first(parts: list[Part], failures: list[Exception | None]) -> None:
    for part, failure in zip(parts, failures, strict=True):
        if failure is not None:
            raise_named(part.table.name, failure)


def raise_named(name: str, error: Exception) -> NoReturn:
    """Raise an error that names the variable: in its message if it is plain, else in a note."""
    if type(error) in (TypeError, ValueError):
        raise cast(Any, type(error))(f"variable {name!r}: {error}") from error
    error.add_note(f"variable {name!r}")
    raise error
