"""Dropping variables: their rows go from the store, from memory and, with the next durable point, from disk.

One durable point makes it so: a crash before it is complete leaves the variable as that point's predecessor has it, a
crash after it leaves none. No call on the variable gets in between. REQUIRES the store's lock.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvemb.durability.manifest import VariableEntry
from kvemb.errors import Closed
from kvemb.store_state import Ended
from kvemb.tiers.sizing import spill_bytes

if TYPE_CHECKING:
    from kvemb.store import Store
    from kvemb.variable import Variable


class Dropped:
    """What stands in the place of a dropped variable's parts: whoever uses one is told."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise Closed(self._why)


def drop(store: Store, names: list[str]) -> None:
    """Drop variables of a store that may be written; durable when this returns.

    Raises Poisoned when the disk does not take it, and what a checkpoint with block=False failed with; then the
    variables are there.
    """
    store._checkpointer.wait()
    opened = {name: store._opened[name] for name in names if name in store._opened}
    stored = [name for name in names if name not in opened or opened[name].persistent]
    with ExitStack() as undo:
        for name, variable in opened.items():
            variable._storage.end(Ended(store.state, _why(store, name)))
            undo.callback(variable._storage.end, store.state)
        if stored:
            for name in stored:
                store._changes.record_dropped(name)
            store._start(None, without=stored)._wait()
        undo.pop_all()
    for variable in opened.values():
        _forget(store, variable, _why(store, variable.name))
    described = {name: entry for name, entry in store._manifest.variables.items() if name not in names}
    hot = {name: files for name, files in store._manifest.hot.items() if name not in names}
    store._manifest = replace(store._manifest, variables=described, hot=hot)
    for name in stored:
        store._in_order(store._database.drop, name)


def is_one_with(variable: Variable, entry: VariableEntry | None) -> bool:
    """Whether a stored variable is what this one was opened as; else it was dropped, and made anew or not."""
    mine = variable._entry()
    return entry is not None and (mine.schema, mine.initializer, mine.policy) == (
        entry.schema,
        entry.initializer,
        entry.policy,
    )


def _why(store: Store, name: str) -> str:
    return f"variable {name!r} was dropped from the store {store.path}; make it anew with get_variable"


def end(store: Store, variable: Variable) -> None:
    """Let a variable that its store has no longer raise Closed, and give its memory back."""
    why = _why(store, variable.name)
    variable._storage.end(Ended(store.state, why))
    _forget(store, variable, why)


def _forget(store: Store, variable: Variable, why: str) -> None:
    """Give a variable's memory back; from here on it raises Closed. REQUIRES: its tiers have ended."""
    del store._opened[variable.name]
    for collection in store._collections.values():
        if variable in collection:
            collection.remove(variable)
    variable._last_stats = variable.stats
    variable._hot_tables.give_back()
    store.budgets.host.give_back(spill_bytes(variable._schema, variable._storage.spill_rows))
    parts: dict[str, Any] = vars(variable)
    for part in ("_storage", "_operations", "_hot_tables"):
        parts[part] = Dropped(why)
