"""Dropping variables from the store, from memory and, with one durable point, from disk.

A crash before that durable point is complete leaves the variable as in the previous point; after a later crash it is
gone. No call on the variable can run in between. REQUIRES: the store's lock.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.admitting import memory_bytes
from kvemb.engine.assembly import give_back, poison_if_there
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import ColdStoreError
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


def is_same_variable(table: Table, entry: VariableEntry | None) -> bool:
    """Whether the stored variable is the one that was opened, and not another that was created with its name."""
    mine = table.entry()
    return entry is not None and (mine.schema, mine.initializer, mine.policy) == (
        entry.schema,
        entry.initializer,
        entry.policy,
    )


def end_variable(engine: Engine, table: Table) -> None:
    """Make every use of a dropped variable raise Closed, and return its memory to the budgets."""
    table.storage.end(DroppedState(engine.state, _why(engine, table.name)))
    _forget(engine, table)


def discard(engine: Engine, table: Table) -> None:
    """Undo making or opening a variable that nobody has yet: drop it if it is new, otherwise close it."""
    with engine.lock:
        if table.specification.is_new:
            drop(engine, [table.name])
        else:
            end_variable(engine, table)


def _why(engine: Engine, name: str) -> str:
    return f"variable {name!r} was dropped from the store {engine.path}; create it again with get_variable"


def _forget(engine: Engine, table: Table) -> None:
    """Return a variable's memory to the budgets; every later use raises Closed. REQUIRES: its storage has ended."""
    engine.discard(table)
    hot_tables, storage = table.hot_tables, table.storage
    table.forget(_why(engine, table.name))
    give_back(engine, hot_tables, storage.slot_rows, storage.lease)
    engine.budgets.host.give_back(memory_bytes(engine, table.specification))
