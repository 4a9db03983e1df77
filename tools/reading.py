"""What the tools that read share: opening a checkpoint or a store, finding the variable that is meant, cutting rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput, WrongUsage

# Called with (rows done, rows in all); in all is 0 where nobody knows.
Progress = Callable[[int, int], None]
# Of a store that is read in key order: rows pass it by, whatever the table's size.
BUDGET = "32MiB"


def newest(path: Path) -> Path:
    """Return the newest checkpoint of a series, and any other path as it is. Raises Corruption."""
    found = kvemb.CheckpointManager(path).latest()
    return path if found is None else found.path


@contextmanager
def opened(path: str | os.PathLike[str], variable: str | None, command: str | None = None) -> Iterator[kvemb.Variable]:
    """Open a checkpoint or a store to be read, and give a variable of it: the only one there is, or the one named.

    command: one that takes the name as an argument; the others take --variable.
    """
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        yield store.variables[chosen(path, list(store.variables), variable, command)]


def chosen(
    path: object, known: list[str], variable: str | None, command: str | None = None, *, has: str = "has"
) -> str:
    """Return the variable that is meant. command: as for opened. has: "have" where path says several. Raises BadInput,
    WrongUsage.
    """
    if not known:
        raise BadInput(f"{path} {has} no variable")
    name = known[0] if variable is None and len(known) == 1 else variable
    if name is None:
        how = f"--variable {known[0]}" if command is None else f"kvemb {command} {path} {known[0]}"
        raise WrongUsage(f"{path} {has} the variables {', '.join(known)}; name one: {how}")
    if name not in known:
        they = "it has" if has == "has" else "they have"
        raise BadInput(f"{path} {has} no variable {name!r}; {they} {', '.join(known)}")
    return name


def kind_name(described: dict[str, Any] | None) -> str:
    """Return the name of an optimizer, a policy or an initializer, as kvemb.bulk.described tells it."""
    return "none" if described is None else str(described.get("name") or described.get("kind"))


def telling(batches: Iterable[bulk.Rows], progress: Progress | None, total: int, done: int = 0) -> Iterator[bulk.Rows]:
    """Yield batches, and tell how far they have come whenever one is dealt with. done: rows before the first."""
    for rows in batches:
        yield rows
        done += len(rows)
        if progress is not None:
            progress(done, total)


def no_rows(variable: kvemb.Variable) -> bulk.Rows:
    """Return whole rows of a variable, none of them."""
    return bulk.read(variable, np.empty(0, variable.key_dtype))


def rows_of(change: kvemb.Change) -> bulk.Rows:
    """Return the rows that a change left, without those it removed."""
    return bulk.Rows(change.keys, change.values, change.slots, change.scores, change.steps)


def selected(rows: bulk.Rows, index: Any) -> bulk.Rows:
    """Return the rows of a mask, a slice or positions. What they do not have, they do not have afterwards."""
    slots, scores, steps = rows.slots, rows.scores, rows.steps
    return bulk.Rows(
        rows.keys[index],
        rows.values[index],
        None if slots is None else {name: slot[index] for name, slot in slots.items()},
        None if scores is None else scores[index],
        None if steps is None else steps[index],
    )
