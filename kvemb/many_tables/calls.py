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
from kvemb.many_tables.arguments import (
    TablePart,
    checked_parts,
    part_to_prefetch,
    part_to_train,
    parts_to_read,
    raise_named,
    rows_of,
)
from kvemb.operations.reads import MissedKeys
from kvemb.threads.disk_waits import ReadThreads
from kvemb.threads.interrupts import uninterrupted
from kvemb.threads.parallel import cores, run_each

# Of the process, because its threads, its cores and the page cache are.
_read_threads = ReadThreads()


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
    left = _find_at_once(parts, touch) if threads == 1 else _find(parts, touch, threads)
    if not left:
        return

    def fill(part: TablePart, found: MissedKeys) -> Callable[[], None]:
        return lambda: part.table.operations.lookup_cold(part.keys, found, part.values, None)

    reads, cold = sum(len(found.positions) for _, found in left), [part for part, _ in left]
    with _read_threads.reading(reads) as threads:
        pays = reads >= cold[0].table.storage.limits.cold_parallel_keys
        failures = run_each([fill(*each) for each in left], threads if pays else 1)
    _raise_first(cold, failures)


def _read_on_device(parts: list[TablePart], touch: bool) -> None:
    for part in parts:
        try:
            part.table.operations.lookup_on_device(part.keys, part.values, None, touch=touch, counts=part.counts)
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
                operations = part.table.operations
                missed = operations.lookup_hot_at_once(part.keys, part.values, touch=touch, counts=part.counts)
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
            operations = part.table.operations
            missed[number] = operations.lookup_hot(part.keys, part.values, None, touch=touch, counts=part.counts)

        return found

    failures = run_each([find(number, part) for number, part in enumerate(parts)], threads)
    _raise_first(parts, failures)
    return [(part, found) for part, found in zip(parts, missed, strict=True) if found is not None]


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
