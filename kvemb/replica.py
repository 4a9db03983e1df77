"""Replicas: bringing a store from one checkpoint of the store that it follows to a later one.

The rows of a delta are written through the tiers like any other change. So a crash half-way leaves the previous durable
point, and repeating the call completes the work.
"""

from __future__ import annotations

from collections import Counter

from kvemb.catalog import open_stored, open_variable
from kvemb.durability import layout, readable
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.delta import epochs_since
from kvemb.durability.epochs import common_checkpoint, dropped_variables
from kvemb.durability.manifest import Epoch
from kvemb.durability.readable import ReadableCheckpoint
from kvemb.durability.variable_entry import VariableEntry
from kvemb.engine.admitting import adopt_counters
from kvemb.engine.dropping import drop
from kvemb.engine.engine import Engine
from kvemb.engine.table import Table
from kvemb.errors import CheckpointNotFound, SchemaMismatch
from kvemb.handle import Handle, inside
from kvemb.rows.codec import check_scores, unordered_keys


def apply_delta(store: Handle[Engine], taken: Checkpoint) -> None:
    """Bring a store to a later checkpoint of the store that it follows. See Store.apply_delta."""
    engine = inside(store)
    engine.state.check_here()
    with engine.lock:
        engine.state.check_writable()
        engine.checkpointer.wait()
        here = engine.changes.epochs()
        if any(taken.id in (epoch.since, *(epoch.includes or ())) for epoch in here):
            return
        position, passed = _common(taken, here)
        cleared, before = engine.changes.cleared_since(position), engine.changes.clears.copy()
        there = _apply_changes(store, taken, position)
        cleared |= set(engine.changes.clears - before - there)  # by other threads meanwhile
        engine.changes.adopt([*passed, taken.id], position, cleared, engine.names())
        engine.points.adopt(taken.id)
        engine.flush()


def _common(taken: Checkpoint, here: list[Epoch]) -> tuple[str, list[str]]:
    """Return what epochs.common_checkpoint does for a checkpoint and a store's epochs. Raises CheckpointNotFound."""
    if (found := common_checkpoint(inside(taken).changes, here)) is not None:
        return found
    last = next((epoch.since for epoch in reversed(here) if epoch.includes is not None), here[-1].since)
    raise CheckpointNotFound(
        f"{taken.path} does not record what changed since checkpoint {last}, up to which this store follows: either it "
        "belongs to another store, or more checkpoints lie between than are recorded, or its store went back to an "
        "earlier checkpoint; restore it to a new store"
    )


def _apply_changes(store: Handle[Engine], taken: Checkpoint, position: str) -> Counter[str]:
    """Apply what changed from the checkpoint with the id `position` to `taken`.

    Returns how often this cleared or dropped each variable.
    """
    engine, described = inside(store), inside(taken)
    epochs = epochs_since(taken.path, described, position)
    gone = dropped_variables(epochs) & set(engine.names()) - {*engine.opened_manifest.left_out}
    if gone:
        drop(engine, sorted(gone))  # a variable that was dropped and created again there is created again here
    there = Counter(gone)
    known = set(engine.names())
    for name, entry in taken.variables.items():
        if name in known and (mine := inside(open_variable(store, name)).schema) != entry.schema:
            raise SchemaMismatch(name, "schema", mine, entry.schema)
    with readable.opened(taken.path, described) as after:
        for name, entry in taken.variables.items():
            if name in known or name not in engine.opened_manifest.left_out:
                table = inside(open_variable(store, name) if name in known else open_stored(store, name, entry))
                there[name] += _apply_to_table(table, after, epochs, entry, engine.limits.scan_rows)
                adopt_counters(engine, table, taken.path / layout.COUNTERS, described.sightings.get(name))
    return there


def _apply_to_table(
    table: Table, after: ReadableCheckpoint, epochs: list[Epoch], entry: VariableEntry, scan_rows: int
) -> bool:
    """Apply the changes of one variable; return whether it was cleared first. Raises Corruption."""
    source = after.rows(table.name)
    assert source is not None
    # Steps of the primary say nothing about the ages that this table counts for a time to live of its own.
    own_time = table.operations.bounds.ttl not in (None, entry.ttl)
    cleared, recorded = after.recorded(epochs, table.name, scan_rows)
    if cleared:
        table.operations.clear()
    for ordered in recorded:
        keys = unordered_keys(ordered, table.schema)
        rows, exists = source.read(keys)
        check_scores(rows)
        if own_time:
            rows.steps[:] = table.storage.step
        table.operations.put(rows, entry.step)
        table.operations.remove(keys[~exists])
    table.storage.advance(entry.step, entry.optimizer_steps)
    return cleared
