"""One call on many variables of a store: all arguments are checked first, then each variable's part runs.

The result is that of one call on each variable, in any order, because variables share no rows. Large calls are spread
over threads: work on hot rows over the cores, cold reads over more threads while they wait for the disk. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from kvemb.defaults import DefaultStore
from kvemb.engine.engine import Engine
from kvemb.handle import inside
from kvemb.many_tables.table_parts import (
    TablePart,
    checked_parts,
    part_to_prefetch,
    part_to_train,
    parts_to_read,
    raise_named,
    rows_of,
)
from kvemb.operations.reads import PartOfLookup, finish_lookups
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.parallel import cores, run_each


def lookup(
    store: DefaultStore[Engine],
    wanted: Mapping[Any, npt.ArrayLike],
    *,
    touch: bool,
    out: Mapping[Any, npt.NDArray[Any]] | None = None,
) -> dict[Any, npt.NDArray[Any]]:
    """See Store.lookup."""
    parts = parts_to_read(store, wanted, out)
    tables = [part.table for part in parts.values()]
    while True:
        refreshes = [table.storage.refreshes for table in tables]
        _read([part for part in parts.values() if not part.given.on_device], touch)
        _read_on_device([part for part in parts.values() if part.given.on_device], touch)
        for table in tables:
            table.storage.ahead.looked_up()
        if refreshes == [table.storage.refreshes for table in tables]:  # else the store moved to a later durable point
            break
    return rows_of(parts, out)


def apply_gradients(store: DefaultStore[Engine], wanted: Mapping[Any, tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
    """See Store.apply_gradients."""
    parts = list(checked_parts(store, wanted, part_to_train).values())
    inside(store).state.check_writable()

    def step(part: TablePart) -> Callable[[], None]:
        return lambda: part.given.apply_gradients(part.values, acknowledge=False)

    with uninterrupted():  # a handler that saves between two variables would save half a step
        failures = run_each([step(part) for part in parts], _threads(parts, in_step=True))
    for part in parts:
        part.table.storage.log.commit()  # the first call waits for the log, which they share
    _raise_first(parts, failures)


def prefetch(store: DefaultStore[Engine], wanted: Mapping[Any, npt.ArrayLike], after_lookup: bool) -> None:
    """See Store.prefetch."""
    for part in checked_parts(store, wanted, part_to_prefetch).values():
        part.given.prefetch(after_lookup=after_lookup)


def _read(parts: list[TablePart], touch: bool) -> None:
    threads = _threads(parts)
    left = _begin_at_once(parts, touch) if threads == 1 else _begin(parts, touch, threads)
    failures = finish_lookups([begun for _, begun in left])
    _raise_first([part for part, _ in left], failures)


def _read_on_device(parts: list[TablePart], touch: bool) -> None:
    for part in parts:
        try:
            part.table.operations.lookup_on_device(part.keys, part.values, None, touch=touch, counts=part.counts)
        except Exception as error:
            raise_named(part.table.name, error)


def _begin_at_once(parts: list[TablePart], touch: bool) -> list[tuple[TablePart, PartOfLookup]]:
    """Look up the rows of each part that are in memory; return what is left.

    A small call spends most of its time on taking locks, so the locks of variables that are free are taken in one
    block.
    """
    left: list[tuple[TablePart, PartOfLookup]] = []
    busy: list[TablePart] = []
    with uninterrupted():
        for part in parts:
            try:
                operations = part.table.operations
                begun = operations.begin_lookup_at_once(part.keys, part.values, touch=touch, counts=part.counts)
            except Exception as error:
                raise_named(part.table.name, error)
            if begun is None:
                busy.append(part)
            else:
                left += [(part, each) for each in begun]
    return left + _begin(busy, touch, 1) if busy else left


def _begin(parts: list[TablePart], touch: bool, threads: int) -> list[tuple[TablePart, PartOfLookup]]:
    """Do what _begin_at_once does, but wait for variables in use. threads: how many threads do the work."""
    begun: list[list[PartOfLookup]] = [[]] * len(parts)

    def begin(number: int, part: TablePart) -> Callable[[], None]:
        def work() -> None:
            operations = part.table.operations
            begun[number] = operations.begin_lookup(part.keys, part.values, None, touch=touch, counts=part.counts)

        return work

    failures = run_each([begin(number, part) for number, part in enumerate(parts)], threads)
    _raise_first(parts, failures)
    return [(part, each) for part, some in zip(parts, begun, strict=True) for each in some]


def _threads(parts: list[TablePart], *, in_step: bool = False) -> int:
    """Return how many threads work on hot rows: one, unless the call has enough keys. in_step: they take steps.

    Also one for arrays on a GPU, because their stream may belong to the calling thread.
    """
    if not parts or any(part.given.on_device for part in parts):
        return 1
    limits = parts[0].table.storage.limits
    least = max(limits.hot_parallel_keys, len(parts) * limits.step_parallel_keys if in_step else 0)
    return cores() if sum(len(part.keys) for part in parts) >= least else 1


def _raise_first(parts: list[TablePart], failures: list[Exception | None]) -> None:
    for part, failure in zip(parts, failures, strict=True):
        if failure is not None:
            raise_named(part.table.name, failure)
