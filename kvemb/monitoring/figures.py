"""What there is to monitor: the name, kind and meaning of each figure, and the figures of a store at this moment.

Every field of kvemb.Stats is a figure. Its name follows from the field's name; a new field only needs its line in
_MEANING, without which this module cannot be imported.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast
from weakref import WeakKeyDictionary

from kvemb.checks.brief import brief
from kvemb.defaults import DefaultStore
from kvemb.engine.table import Table
from kvemb.errors import Closed, KvembError
from kvemb.handle import inside
from kvemb.stats import Stats, TierSize, is_size
from kvemb.store import Store
from kvemb.threads.interrupts import uninterrupted

# A store, or a cluster's store.
AnyStore = DefaultStore[Any]

# What each field of kvemb.Stats means, in a sentence; of `tiers`, the fields of TierSize.
_MEANING = {
    "hits": "Keys looked up whose row was hot.",
    "misses": "Keys looked up whose row was not hot.",
    "absent": "Keys looked up that had no row.",
    "refused": "Gradients dropped because Admission had not given their key a row yet.",
    "promotions": "Rows offered to the hot tier, cold ones and new ones.",
    "cold_reads": "Rows read from the cold store.",
    "cold_writes": "Rows written to the cold store, removals included.",
    "rows": "Rows, hot and cold.",
    "rows_hot": "Rows in memory.",
    "rows_waiting": "Rows that wait to be written to the cold store, removals included.",
    "bytes_hot": "Bytes of the hot tier's cells, used or not.",
    "bytes_cold": "Bytes of the cold store's files and memtables, replaced rows included.",
    "bytes_sightings": "Bytes of the counters of an Admission.",
    "seconds_lookup": "Time spent in lookups.",
    "seconds_update": "Time spent in updates.",
    "seconds_cold_read": "Time spent reading the cold store.",
    "seconds_cold_write": "Time spent writing rows to the cold store.",
}
_MEANING_IN_TIER = {
    "rows": "Rows of a tier; each row is in one of them.",
    "cells": "Cells for rows in a tier; on disk there are none.",
    "nbytes": "Bytes of a tier's cells, or of its files and memtables.",
}


@dataclass(frozen=True)
class Figure:
    """A figure. name: without the prefix `kvemb_`, and without `_total`. counter: whether it only grows."""

    name: str
    meaning: str
    counter: bool = False
    labels: tuple[str, ...] = ("store",)

    @property
    def full_name(self) -> str:
        """The name as Prometheus stores it."""
        return f"kvemb_{self.name}{'_total' * self.counter}"


def _of_field(name: str) -> Figure:
    """Return the figure of a field of kvemb.Stats: units stand at the end, and what is no size only grows."""
    unit, _, what = name.partition("_")
    spelt = f"{what}_{unit}" if unit in ("bytes", "seconds") else name
    return Figure(spelt, _MEANING[name], not is_size(name), ("store", "variable"))


def _of_tier_field(name: str) -> Figure:
    spelt = f"tier_{'bytes' if name == 'nbytes' else name}"
    return Figure(spelt, _MEANING_IN_TIER[name], labels=("store", "variable", "tier"))


OF_STATS = {each.name: _of_field(each.name) for each in fields(Stats) if each.name != "tiers"}
OF_TIER = {each.name: _of_tier_field(each.name) for each in fields(TierSize)}
UP = Figure("up", "1 if the store can be read; 0 after close(), in a forked process, or if a cluster lost a shard.")
POISONED = Figure("poisoned", "1 after a failed write to disk: writes raise Poisoned, reads still work.")
POINT = Figure("point", "Number of the last durable point; of a cluster, of its last checkpoint.")
POINT_CREATED = Figure(
    "point_timestamp_seconds",
    "When the last durable point, or a cluster's last checkpoint, was made, in seconds since 1970.",
)
BUDGET = Figure("memory_budget_bytes", "The memory_budget with which the store was opened.")
MEMORY = Figure(
    "memory_bytes", "Where the bytes of the memory_budget are (kvemb.Store.memory).", labels=("store", "part")
)
ALL = (UP, POISONED, POINT, POINT_CREATED, BUDGET, MEMORY, *OF_STATS.values(), *OF_TIER.values())

# A figure, the values of its labels, and its value.
Sample = tuple[Figure, tuple[str, ...], float]


def named_stores(stores: tuple[AnyStore, ...], named: Mapping[str, AnyStore]) -> dict[str, AnyStore]:
    """Return stores by their label: the given name, or the path. Raises TypeError, ValueError."""
    found: dict[str, AnyStore] = {}
    for name, store in [*((None, store) for store in stores), *named.items()]:
        if not isinstance(store, DefaultStore):
            raise TypeError(
                f"expected a store, got {brief(store)}; give what kvemb.open or kvemb.cluster.open returned"
            )
        label = str(cast(Any, store).path) if name is None else name
        if label in found:
            raise ValueError(f"two stores would have the label {label!r}; give one of them another name: reader=store")
        found[label] = store
    return found


def samples(label: str, store: AnyStore) -> Iterator[Sample]:
    """Yield the figures of a store that can be read now. Raises no KvembError."""
    names = (label,)
    if store.state.gone:  # in a forked process, a lock may be held forever
        yield UP, names, 0
        return
    try:
        point, created = _point(store)
        by_variable = dict(_stats(store))
    except KvembError:  # it was closed meanwhile, or a shard is lost
        yield UP, names, 0
        return
    yield UP, names, 1
    yield POISONED, names, int(store.state.cause is not None)
    yield POINT, names, point
    if created is not None:
        yield POINT_CREATED, names, created
    if isinstance(store, Store):
        yield BUDGET, names, store.budget.total
        for part, nbytes in store.memory.items():
            yield MEMORY, (label, part), nbytes
    for variable, stats in by_variable.items():
        for name, figure in OF_STATS.items():
            yield figure, (label, variable), getattr(stats, name)
        for tier, size in stats.tiers.items():
            for name, figure in OF_TIER.items():
                yield figure, (label, variable, tier), getattr(size, name)


def _point(store: AnyStore) -> tuple[int, float | None]:
    """Return the number of the last durable point, and when it was made. Raises KvembError."""
    if isinstance(store, Store):
        return store.point, inside(store).current_manifest.created
    found: tuple[int, float | None] = cast(Any, inside(store)).begin_call().ask("last_created")
    return found


def _stats(store: AnyStore) -> Iterator[tuple[str, Stats]]:
    """Yield the counts of each open variable, but not of one that is dropped meanwhile."""
    for table in list(inside(store).tables.values()):
        try:
            stats = _reported.setdefault(table, _Reported()).stats(table)
        except Closed:
            continue
        yield table.name, stats


@dataclass(eq=False)
class _Reported:
    """What was reported of a variable, so that its misses never fall.

    During a lookup, its absent keys count as misses (kvemb.Stats). Prometheus takes a count that falls for one that
    began again at 0, and would add all of it. looked_up: hits, misses and absent together, which fall only if the
    counts do begin again: when a cluster recovers.
    """

    looked_up: int = 0
    misses: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stats(self, table: Table) -> Stats:
        """Return the counts of the variable. Raises what Table.stats raises."""
        with uninterrupted(), self.lock:
            stats = table.stats()
            before, self.looked_up = self.looked_up, stats.hits + stats.misses + stats.absent
            self.misses = stats.misses if self.looked_up < before else max(self.misses, stats.misses)
            return replace(stats, misses=self.misses)


_reported: WeakKeyDictionary[Table, _Reported] = WeakKeyDictionary()
