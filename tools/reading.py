"""What the tools that read share: opening a checkpoint or a store, finding the variable that is meant, cutting rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import kvemb
from kvemb import bulk
from kvemb.tools.failures import BadInput

# Called with (rows done, rows in all); in all is 0 where nobody knows.
Progress = Callable[[int, int], None]
# Of a store that is read in key order: rows pass it by, whatever the table's size.
BUDGET = "32MiB"


@contextmanager
def opened(path: str | os.PathLike[str], variable: str | None) -> Iterator[kvemb.Variable]:
    """Open a checkpoint or a store to be read, and give a variable of it: the only one there is, or the one named."""
    with kvemb.open(path, read_only=True, memory_budget=BUDGET) as store:
        yield store.variables[chosen(path, list(store.variables), variable)]


def chosen(path: object, known: list[str], variable: str | None) -> str:
    """Return the variable that is meant. Raises BadInput."""
    name = known[0] if variable is None and len(known) == 1 else variable
    if name is None:
        raise BadInput(f"{path} has the variables {', '.join(known) or '(none)'}; name one")
    if name not in known:
        raise BadInput(f"{path} has no variable {name!r}; it has {', '.join(known) or 'none'}")
    return name


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
