"""Bringing a store to a later checkpoint of the store it follows: what changed there replaces what is here.

REQUIRES the store's lock. Rows go through the tiers as any change does, so a crash half-way leaves the durable point
before, and the same call again completes the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvemb.dropping import drop
from kvemb.durability import changes
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.delta import epochs_since
from kvemb.durability.manifest import Epoch
from kvemb.durability.readable import Readable, opened
from kvemb.errors import SchemaMismatch
from kvemb.rows.codec import unordered_keys

if TYPE_CHECKING:
    from kvemb.store import Store
    from kvemb.variable import Variable


def common(taken: Checkpoint, ancestors: list[str]) -> str:
    """Return the last of a store's ancestors that a checkpoint follows; its last if there is none."""
    followed = {epoch.since for epoch in taken._manifest.changes}
    return next((checkpoint for checkpoint in ancestors if checkpoint in followed), ancestors[0])


def bring_to(store: Store, taken: Checkpoint, position: str) -> None:
    """Apply what changed from the checkpoint with the id `position` to `taken`. See Store.apply_delta."""
    from kvemb.variable import open_stored

    epochs = epochs_since(taken.path, taken._manifest, position)
    gone = changes.dropped(epochs) & set(store.variables) - {*store._manifest.left_out}
    if gone:
        drop(store, sorted(gone))  # what was made anew there is made anew here
    for name, entry in taken.variables.items():
        if name in store.variables and (mine := store.variables[name]._entry().schema) != entry.schema:
            raise SchemaMismatch(name, "schema", mine, entry.schema)
    with opened(taken.path, taken._manifest) as after:
        for name, entry in taken.variables.items():
            if name in store.variables:
                _bring(store.variables[name], name, after, epochs, entry.step)
            elif name not in store._manifest.left_out:
                _bring(open_stored(store, name, entry), name, after, epochs, entry.step)


def _bring(variable: Variable, name: str, after: Readable, epochs: list[Epoch], step: int) -> None:
    source, operations = after.rows(name), variable._operations
    assert source is not None
    cleared, recorded = after.recorded(epochs, name)
    if cleared:
        operations.clear()
    for ordered in recorded:
        keys = unordered_keys(ordered, variable._schema)
        rows, exists = source.read(keys)
        operations.put(rows, step)
        operations.remove(keys[~exists])
