"""Following another store: a replica moves from checkpoint to checkpoint, a reader from durable point to durable point.

The rows of a delta go through the tiers like any change. So a crash half-way leaves the durable point before it, and
repeating the call completes the work.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from kvemb.catalog import open_stored
from kvemb.catalog import opened as opened_variable
from kvemb.contracts import ColdDatabase
from kvemb.durability import changes, layout
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.delta import epochs_since
from kvemb.durability.keyfile import distinct, read_keys
from kvemb.durability.manifest import Epoch, Manifest, VariableEntry
from kvemb.durability.points import reading
from kvemb.durability.readable import Readable, opened
from kvemb.engine.dropping import drop, end, is_one_with
from kvemb.engine.engine import Engine
from kvemb.engine.specification import stored_optimizer
from kvemb.engine.table import Table
from kvemb.errors import Corruption, SchemaMismatch, StoreNotFound
from kvemb.handle import Handle, inside
from kvemb.rows.codec import unordered_keys
from kvemb.tiers.storage import Renewed

# Rows of a refresh that are read at a time.
READ_ROWS = 256


def apply_delta(store: Handle[Engine], taken: Checkpoint) -> None:
    """Bring a store to a later checkpoint of the store it follows. See Store.apply_delta."""
    engine = inside(store)
    engine.state.check_here()
    with engine.lock:
        engine.state.check_writable()
        engine.checkpointer.wait()
        ancestors = engine.changes.ancestors()
        if taken.id in ancestors:
            return
        position = _common(taken, ancestors)
        _bring_to(store, taken, position)
        engine.changes.adopt(taken.id, position)
        engine.points.adopt(taken.id)
        engine.flush()


def _common(taken: Checkpoint, ancestors: list[str]) -> str:
    """Return the last of a store's ancestors that a checkpoint follows; its last if there is none."""
    followed = {epoch.since for epoch in inside(taken).changes}
    return next((checkpoint for checkpoint in ancestors if checkpoint in followed), ancestors[0])


def _bring_to(store: Handle[Engine], taken: Checkpoint, position: str) -> None:
    """Apply what changed from the checkpoint with the id `position` to `taken`."""
    engine, described = inside(store), inside(taken)
    epochs = epochs_since(taken.path, described, position)
    gone = changes.dropped(epochs) & set(engine.names()) - {*engine.described.left_out}
    if gone:
        drop(engine, sorted(gone))  # a variable that was created again there is created again here
    known = set(engine.names())
    for name, entry in taken.variables.items():
        if name in known and (mine := inside(opened_variable(store, name)).schema) != entry.schema:
            raise SchemaMismatch(name, "schema", mine, entry.schema)
    with opened(taken.path, described) as after:
        for name, entry in taken.variables.items():
            if name in known:
                _bring(inside(opened_variable(store, name)), after, epochs, entry, engine.limits.scan_rows)
            elif name not in engine.described.left_out:
                _bring(inside(open_stored(store, name, entry)), after, epochs, entry, engine.limits.scan_rows)


def _bring(table: Table, after: Readable, epochs: list[Epoch], entry: VariableEntry, scan_rows: int) -> None:
    source = after.rows(table.name)
    assert source is not None
    cleared, recorded = after.recorded(epochs, table.name, scan_rows)
    if cleared:
        table.operations.clear()
    for ordered in recorded:
        keys = unordered_keys(ordered, table.schema)
        rows, exists = source.read(keys)
        table.operations.put(rows, entry.step)
        table.operations.remove(keys[~exists])
    table.storage.advance(entry.step, entry.optimizer_steps)


def refresh(engine: Engine) -> bool:
    """Show the last durable point of the store that this one follows. See Store.refresh."""
    engine.state.check_here()
    with engine.lock:
        engine.state.check_open()
        if not engine.follows:
            raise ValueError(f"{engine.path} was not opened with follow=True; it shows what it showed at first")
        with ExitStack() as view:
            database, described = view.enter_context(reading(engine.path, engine.open_database))
            if described.id == engine.described.id:
                return False
            if described.store != engine.described.store:
                raise StoreNotFound(f"another store is at {engine.path} now; close this one, and open that")
            renewed = {name: _renewed(engine, database, described, table) for name, table in engine.tables.items()}
            gone: list[Table] = []
            # Without a record of drops that reaches back, every variable may be another one.
            dropped = changes.dropped_after(engine.described.changes, described.changes)
            with ExitStack() as paused:
                for table in engine.tables.values():
                    paused.enter_context(table.storage.closing())
                for name, table in engine.tables.items():
                    new = dropped is None or name in dropped
                    if new or not is_one_with(table, described.variables.get(name)):
                        gone.append(table)
                        continue
                    entry = described.variables[name]
                    changed = renewed[name]
                    cold = database.attach(name, entry.schema) if changed is None else changed.cold
                    table.storage.show(cold, entry.rows, entry.step, entry.optimizer_steps, changed)
                    table.operations.optimizer = stored_optimizer(entry)
            for table in gone:
                end(engine, table)
            engine.database, engine.described = database, described
            before, engine.view = engine.view, view.pop_all()
        before.close()
        return True


def _renewed(engine: Engine, database: ColdDatabase, described: Manifest, table: Table) -> Renewed | None:
    """Return what changed from the point that is shown to this one, which is open, with the new rows of what is hot.

    None if it is not known, or no less than what is hot: then nothing is gained by keeping any.
    """
    files = changes.files_between(engine.described.changes, described.changes, table.name)
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
    except (FileNotFoundError, Corruption):  # the point has been replaced, or its rows are sound and this file is not
        return None
    keys = unordered_keys(distinct(np.concatenate(found)), table.schema)
    table.hot_tables.devices_of(keys)  # a partitioner that raises does so before anything is done
    cold = database.attach(table.name, entry.schema)
    with table.storage.held():
        hot = keys[table.hot_tables.find(keys, table.hot_tables.owners(keys)) >= 0][: engine.limits.scan_rows]
    # A few at a time: lookups go on meanwhile, and reading holds the GIL for a part of its time.
    blocks = [cold.read(hot[at : at + READ_ROWS])[0] for at in range(0, len(hot), READ_ROWS)]
    return Renewed(cold, keys, blocks)
