"""A replica: a store that is brought from one checkpoint of the store it follows to a later one.

The rows of a delta go through the tiers like any change. So a crash half-way leaves the durable point before it, and
repeating the call completes the work.
"""

from __future__ import annotations

from kvemb.catalog import open_stored, opened
from kvemb.durability import changes, readable
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.delta import epochs_since
from kvemb.durability.manifest import Epoch, VariableEntry
from kvemb.durability.readable import Readable
from kvemb.engine.dropping import drop
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import SchemaMismatch
from kvemb.handle import Handle, inside
from kvemb.rows.codec import unordered_keys


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
        if name in known and (mine := inside(opened(store, name)).schema) != entry.schema:
            raise SchemaMismatch(name, "schema", mine, entry.schema)
    with readable.opened(taken.path, described) as after:
        for name, entry in taken.variables.items():
            if name in known:
                _bring(inside(opened(store, name)), after, epochs, entry, engine.limits.scan_rows)
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
