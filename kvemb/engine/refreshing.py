"""Refreshing a reader: all its variables move at once to a newer durable point of the store that it follows.

Hot rows stay hot, and those that changed are read again before the move. If the store was restored from a checkpoint
since, as CheckpointManager.resume does, what changed is unknown, and no hot row is kept. Lookups continue meanwhile; a
lookup during which the reader moves starts again (kvemb.operations.reads, repeat_if_refreshed).
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from kvemb.checks import open_file_limit
from kvemb.contracts import ColdDatabase
from kvemb.durability import layout
from kvemb.durability.epochs import files_between, variables_dropped_between
from kvemb.durability.keyfile import distinct, read_keys
from kvemb.durability.manifest import Manifest
from kvemb.durability.points import held_history, reading
from kvemb.engine.dropping import end_variable, is_same_variable
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import Corruption, StoreNotFound
from kvemb.rows.codec import check_scores, unordered_keys
from kvemb.tiers.storage import RefreshedState

# Rows that a refresh reads at a time.
READ_ROWS = 256


def refresh(engine: Engine) -> bool:
    """Move to the last durable point of the store that this one follows. See Store.refresh."""
    try:
        with open_file_limit.told(f"read {engine.path}"):
            return _refresh(engine)
    except (StoreNotFound, Corruption) as error:
        path = engine.path
        if path.is_dir() and not (layout.is_store(path) and (path / layout.POINTS).is_dir()):
            raise StoreNotFound(
                f"{path} is being restored from a checkpoint, or is damaged; this reader keeps showing its last point; "
                "call refresh() again later"
            ) from error
        raise


def _refresh(engine: Engine) -> bool:
    engine.state.check_here()
    with engine.lock:
        engine.state.check_open()
        if not engine.follows:
            shown = "what it showed when it was opened" if engine.state.read_only else "its own changes at once"
            raise ValueError(
                f"{engine.path} was not opened with follow=True, so it shows {shown}; to refresh it, open it with "
                "follow=True"
            )
        present = engine.opened_manifest.point
        if engine.has_history() and layout.current_point(engine.path) == layout.point(engine.path, present):
            return False
        with ExitStack() as kept, ExitStack() as view:
            # Before the point, and asked after it, because the store may be restored at any time.
            has_history = kept.enter_context(held_history(engine.path))
            database, described = view.enter_context(reading(engine.path, engine.open_database))
            if described.id == engine.opened_manifest.id:
                engine.opened_manifest, engine.has_history = described, has_history
                engine.view.push(kept.pop_all())
                return False
            if described.store != engine.opened_manifest.store:
                raise StoreNotFound(
                    f"another store has taken the place of this one at {engine.path}; close this one, and open that"
                )
            follows_on = engine.has_history() and layout.history(present) == layout.history(described.point)
            for table in _move_tables(engine, database, described, follows_on=follows_on):
                end_variable(engine, table)
            engine.database, engine.opened_manifest, engine.has_history = database, described, has_history
            view.push(kept.pop_all())
            before, engine.view = engine.view, view.pop_all()
        before.close()
        return True


def _move_tables(engine: Engine, database: ColdDatabase, described: Manifest, *, follows_on: bool) -> list[Table]:
    """Move every open table to this opened point; return the tables whose variables are not in it.

    follows_on: whether the point is of the same history, so that its key files have all keys that changed.
    """
    renewed = {
        name: _renewed(engine, database, described, table) if follows_on else None
        for name, table in engine.tables.items()
    }
    # Without a record of drops since the present point, every variable may have been dropped and created again. If the
    # store went back, its variables of then are there, as they are in the store itself (kvemb.engine.rolling_back).
    dropped = variables_dropped_between(engine.opened_manifest.changes, described.changes)
    if dropped is None and layout.history(described.point) != layout.history(engine.opened_manifest.point):
        dropped = set()
    gone: list[Table] = []
    with ExitStack() as paused:
        for table in engine.tables.values():
            paused.enter_context(table.storage.closing())
        for name, table in engine.tables.items():
            if dropped is None or name in dropped or not is_same_variable(table, described.variables.get(name)):
                gone.append(table)
                continue
            entry, changed = described.variables[name], renewed[name]
            cold = database.attach(name, entry.schema) if changed is None else changed.cold
            table.storage.refresh(cold, entry.rows, entry.step, entry.optimizer_steps, changed)
            table.take(entry)
    return gone


def _renewed(engine: Engine, database: ColdDatabase, described: Manifest, table: Table) -> RefreshedState | None:
    """Return what changed from the present point to this opened one, with the new rows of hot keys.

    Returns None if that is unknown, or not less than the number of hot rows; then no hot row is kept.
    """
    files = files_between(engine.opened_manifest.changes, described.changes, table.name)
    if files is None or (entry := described.variables.get(table.name)) is None:
        return None
    most, count = table.hot_tables.size, 0
    found = [np.empty(0, np.uint64)]
    try:
        for file in files:
            for ordered in read_keys(layout.point(engine.path, described.point) / layout.CHANGES / file):
                found.append(ordered)
                if (count := count + len(ordered)) > most:
                    return None
    except (FileNotFoundError, Corruption):  # the point was replaced, or only this file is damaged
        return None
    keys = unordered_keys(distinct(np.concatenate(found)), table.schema)
    table.hot_tables.partition.devices_of(keys)  # calls the partitioner, which may raise, before anything is done
    cold = database.attach(table.name, entry.schema)
    with table.storage.access.held():
        hot = keys[table.hot_tables.find(keys, table.hot_tables.owners(keys)) >= 0][: engine.limits.scan_rows]
    # A few at a time, because lookups continue meanwhile, and a read holds the GIL for a part of its time.
    blocks = [cold.read(hot[at : at + READ_ROWS])[0] for at in range(0, len(hot), READ_ROWS)]
    for block in blocks:
        check_scores(block)
    return RefreshedState(cold, keys, blocks)
