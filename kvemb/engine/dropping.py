"""Dropping variables from the store, from memory and, with one durable point, from disk.

A crash before that durable point is complete leaves the variable as in the previous point; after a later crash it is
gone. No call on the variable can run in between. REQUIRES: the store's lock.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from kvemb.checks.brief import there_are
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.admitting import memory_bytes
from kvemb.engine.assembly import give_back, poison_if_there
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import ColdStoreError
from kvemb.restrict import policy_class_name
from kvemb.store_state import DroppedState


def drop(engine: Engine, names: list[str]) -> None:
    """Drop variables of a writable store; the drop is durable when this returns.

    Raises Poisoned if a write fails, and the error of an earlier checkpoint with block=False that failed; then the
    variables still exist.
    """
    engine.checkpointer.wait()
    opened = {name: engine.tables[name] for name in names if name in engine.tables}
    stored = [name for name in names if name not in opened or opened[name].persistent]
    with ExitStack() as undo:
        for name, table in opened.items():
            table.storage.end(DroppedState(engine.state, _why(engine, name)))
            undo.callback(table.storage.end, engine.state)
        if stored:
            engine.start(without=stored).result()
        undo.pop_all()
    for table in opened.values():
        _forget(engine, table)
    described = {name: entry for name, entry in engine.opened_manifest.variables.items() if name not in names}
    hot = {name: files for name, files in engine.opened_manifest.hot.items() if name not in names}
    sightings = {name: counted for name, counted in engine.opened_manifest.sightings.items() if name not in names}
    engine.opened_manifest = replace(engine.opened_manifest, variables=described, hot=hot, sightings=sightings)
    for name in stored:
        try:
            engine.in_order(engine.database.drop, name)
        except ColdStoreError as error:
            poison_if_there(engine, name, error)
            engine.state.check_writable()
            raise


def take_out(engine: Engine, name: str) -> None:
    """Take a stored variable out of the open database, so that another can be made in its place before the next point.

    Until that is complete, the durable point has the variable as it was, and so has the store after a crash. Raises
    KeyError, ValueError; Closed, ReadOnly, Poisoned.
    """
    engine.state.check_here()
    with engine.no_point_in_progress():
        if name not in (names := engine.names()):
            raise KeyError(f"there is no variable {name!r}; {there_are(names)}")
        if name in engine.tables:
            raise ValueError(f"variable {name!r} is open; close the store, open it again, and call this first")
        if engine.log is not None:
            raise ValueError(
                "the store was opened with durability='write', which makes durable points by itself; close it, and "
                "open it without"
            )
        engine.changes.record_dropped(name)
        described = {each: entry for each, entry in engine.opened_manifest.variables.items() if each != name}
        engine.opened_manifest = replace(engine.opened_manifest, variables=described)
        engine.in_order(engine.database.drop, name)


def is_same_variable(table: Table, entry: VariableEntry | None) -> bool:
    """Whether the stored variable is the one that was opened, and not another that was created with its name."""
    mine = table.entry()
    return entry is not None and (mine.schema, mine.initializer, policy_class_name(mine.policy)) == (
        entry.schema,
        entry.initializer,
        policy_class_name(entry.policy),
    )


def end_variable(engine: Engine, table: Table) -> None:
    """Make every use of a dropped variable raise Closed, and return its memory to the budgets."""
    table.storage.end(DroppedState(engine.state, _why(engine, table.name)))
    _forget(engine, table)


def refuse_variable(engine: Engine, table: Table, why: str) -> None:
    """Make every use of a variable that is there no more raise Closed. REQUIRES: closing(); then forget_variable()."""
    table.storage.discard()
    table.storage.refuse(DroppedState(engine.state, why))


def forget_variable(engine: Engine, table: Table, why: str) -> None:
    """Return the memory of a variable to the budgets. REQUIRES: refuse_variable(), and no lock of a variable."""
    _forget(engine, table, why)


def discard(engine: Engine, table: Table) -> None:
    """Undo making or opening a variable that nobody has yet: drop it if it is new, otherwise close it."""
    with engine.lock:
        if table.specification.is_new:
            drop(engine, [table.name])
        else:
            end_variable(engine, table)


def _why(engine: Engine, name: str) -> str:
    return f"variable {name!r} was dropped from the store {engine.path}; create it again with get_variable"


def _forget(engine: Engine, table: Table, why: str | None = None) -> None:
    """Return a variable's memory to the budgets; every later use raises Closed. REQUIRES: its storage has ended."""
    engine.discard(table)
    hot_tables, storage = table.hot_tables, table.storage
    table.forget(why or _why(engine, table.name))
    storage.give_back_staging()
    give_back(engine, hot_tables)
    engine.budgets.host.give_back(memory_bytes(engine, table.specification))
