"""Shared by the tools that read: opening a checkpoint or a store, choosing a variable, selecting rows, progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput, WrongUsage

# Called with (rows done, rows in total); the total is 0 if it is not known.
Progress = Callable[[int, int], None]
# Memory budgets of the stores that commands read and write. Rows that are read in key order do not pass through the
# hot tier.
READ_BUDGET, WRITE_BUDGET = "32MiB", "128MiB"


@contextmanager
def opened(
    path: str | os.PathLike[str],
    variable: str | None,
    *,
    progress: Progress | None = None,
    named: object = None,
    or_all: bool = False,
) -> Iterator[kvemb.Variable]:
    """Open a checkpoint or a store for reading, wherever it is, and yield its named variable, or the only one.

    progress: see readable. named: the path's name in messages; None: the path itself. or_all: see chosen.
    """
    with _store(path, progress) as store:
        yield store.variables[chosen(named or path, list(store.variables), variable, or_all=or_all)]


@contextmanager
def all_opened(
    path: str | os.PathLike[str], *, progress: Progress | None = None, named: object = None
) -> Iterator[list[kvemb.Variable]]:
    """Open a place as opened does, and yield all its variables, by name. Raises BadInput if there are none.

    All are of one durable point, although a store may get a newer one meanwhile.
    """
    with _store(path, progress) as store:
        if not store.variables:
            raise BadInput(f"{named or path} has no variable")
        yield [store.variables[name] for name in sorted(store.variables)]


@contextmanager
def _store(path: str | os.PathLike[str], progress: Progress | None) -> Iterator[kvemb.Store]:
    with readable(path, progress) as place, kvemb.open(place, read_only=True, memory_budget=READ_BUDGET) as store:
        yield store


@contextmanager
def readable(
    path: str | os.PathLike[str], progress: Progress | None = None, *, since: Path | None = None
) -> Iterator[Path]:
    """Yield the local path of the checkpoint or store at a place (kvemb.bulk.Place), which is pulled if necessary.

    progress(done, total): called with bytes pulled, and with rows of a cluster's shards. since: an earlier local
    checkpoint: only what changed since is pulled, if that is known.
    """
    have = [] if since is None else [kvemb.Checkpoint.at(since)]
    with bulk.Place(path).readable(have=have, progress=progress) as place:
        yield place


def chosen(path: object, known: list[str], variable: str | None, *, has: str = "has", or_all: bool = False) -> str:
    """Return the name of the variable to use: the one named, or the only one.

    has: "have" if path names several. or_all: advise --all, too. Raises BadInput, WrongUsage.
    """
    if not known:
        raise BadInput(f"{path} {has} no variable")
    name = known[0] if variable is None and len(known) == 1 else variable
    if name is None:
        advice = f"name one: --variable {known[0]}{', or give --all' * or_all}"
        raise WrongUsage(f"{path} {has} the variables {', '.join(known)}; {advice}")
    if name not in known:
        they = "it has" if has == "has" else "they have"
        raise BadInput(f"{path} {has} no variable {name!r}; {they} {', '.join(known)}")
    return name


def kind_name(described: dict[str, Any] | None) -> str:
    """Return the name of an optimizer, a policy or an initializer that kvemb.bulk.described returned."""
    return "none" if described is None else str(described.get("name") or described.get("kind"))


def scores_are_times(policy: dict[str, Any] | None) -> bool:
    """Whether scores are seconds since 1970, by the policy that kvemb.bulk.described returned."""
    return policy is not None and policy["kind"] == "timestamp" and policy["clock"] == "seconds"


def with_progress(batches: Iterable[bulk.Rows], progress: Progress | None, total: int) -> Iterator[bulk.Rows]:
    """Yield batches, and report progress after the caller has used each."""
    done = 0
    for rows in batches:
        yield rows
        done += len(rows)
        if progress is not None:
            progress(done, total)


def no_rows(variable: kvemb.Variable) -> bulk.Rows:
    """Return zero rows of a variable, with all columns."""
    return bulk.read(variable, np.empty(0, variable.key_dtype))


def rows_of(change: kvemb.Change) -> bulk.Rows:
    """Return the rows that a change added or replaced."""
    return bulk.Rows(**{column.name: getattr(change, column.name) for column in fields(bulk.Rows)})


def selected(rows: bulk.Rows, index: Any) -> bulk.Rows:
    """Return the rows of a mask, a slice (as views) or positions. Columns that are None stay None."""

    def part(column: Any) -> Any:
        if isinstance(column, dict):
            return {name: slot[index] for name, slot in column.items()}
        return None if column is None else column[index]

    return bulk.Rows(**{name: part(column) for name, column in vars(rows).items()})
