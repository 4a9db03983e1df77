"""The delta between two checkpoints of one store, at a cost proportional to the change.

For each recorded key (kvemb.durability.changes) the rows of both checkpoints are compared. Based on the incremental
checkpoints of Check-N-Run (Eisenman et al., NSDI 2022). Works in batches, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.contracts import ColdStore, Mask
from kvemb.durability.epochs import since
from kvemb.durability.keyfile import merged
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.readable import ReadableCheckpoint
from kvemb.errors import CheckpointNotFound
from kvemb.limits import DEFAULT
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered, order_keys, unordered_keys
from kvemb.rows.names import keys_of
from kvemb.rows.schema import Schema


@dataclass(frozen=True)
class Change:
    """Hold a batch of the changes of one variable between two checkpoints, in key order.

    ``Checkpoint.changes`` yields them. If the variable was dropped, ``removed`` has all its keys. If another one was
    created under its name, ``keys`` has the rows of the new one, with its dtypes, dim and slots, and ``removed`` the
    keys that the new one lacks.

    Attributes:
        variable: The variable's name.
        keys: Keys (n,), ascending, of rows that are new, or differ in embedding, slots, score or step of last change.
        values: Their embeddings (n, dim).
        slots: Their slots by name (n, width).
        scores: Their scores, float64 (n,).
        steps: The steps of their last change, int64 (n,).
        removed: Keys (m,), ascending, of rows that were removed.
    """

    variable: str
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    slots: dict[str, npt.NDArray[Any]]
    scores: npt.NDArray[np.float64]
    steps: npt.NDArray[np.int64]
    removed: npt.NDArray[Any]


def epochs_since(path: Path, described: Manifest, before: str) -> list[Epoch]:
    """Return a checkpoint's epochs from the checkpoint with the id `before` on. Raises CheckpointNotFound."""
    if described.id == before:
        return []
    epochs = since(described.changes, before)
    if epochs is None:
        raise CheckpointNotFound(
            f"{path} does not record what changed since checkpoint {before}, only since {described.changes[0].since}: "
            "either it belongs to another store, or more checkpoints lie between than are recorded; compare whole "
            "tables, or restore"
        )
    return epochs


def differences(
    before: ReadableCheckpoint, after: ReadableCheckpoint, variables: list[str], batch_rows: int = DEFAULT.scan_rows
) -> Iterator[Change]:
    """Yield the changes of these variables. batch_rows: keys that are looked at at a time.

    Raises CheckpointNotFound, Corruption, ColdStoreError.
    """
    epochs = epochs_since(after.path, after.described, before.described.id)
    for name in variables:
        old, new = before.rows(name), after.rows(name)
        was, schema = _schema(before, name), _schema(after, name)
        if old is not None and was is not None and (schema is None or was.key_kind != schema.key_kind):
            yield from _all_removed(name, was, old, batch_rows)  # it was dropped
            old = None
        if new is None or schema is None:
            continue
        cleared, recorded = after.recorded(epochs, name, batch_rows)
        if cleared and old is not None:
            recorded = merged([recorded, (order_keys(rows.keys, schema) for rows in old.scan(batch_rows))])
        for ordered in recorded:
            keys = unordered_keys(ordered, schema)
            rows, exists = new.read(keys)
            if old is None:
                changed, removed = rows, RowBlock(schema, 0)
            else:
                old_rows, existed = old.read(keys)
                changed = rows.select(~_unchanged(rows, exists, old_rows, existed)) if was == schema else rows
                gone = ~exists[existed]
                if schema.name_bytes:
                    gone[exists[existed]] = _of_other_names(rows, exists, old_rows, existed)
                removed = old_rows.select(gone)
            if len(changed) or len(removed):
                yield _change(name, changed, removed)


def differing(old: RowBlock, new: RowBlock, schema: Schema) -> Ordered:
    """Return the keys of two blocks in key order, ascending, whose rows differ or are in one of them alone."""
    was, now = order_keys(old.keys, schema), order_keys(new.keys, schema)
    both = np.union1d(was, now)
    exists, existed = np.isin(both, now), np.isin(both, was)
    changed = exists.copy()
    changed[exists] = ~_unchanged(new, exists, old, existed)
    return both[changed | ~exists]


def _schema(readable: ReadableCheckpoint, name: str) -> Schema | None:
    entry = readable.described.variables.get(name)
    return None if entry is None else entry.schema


def _all_removed(name: str, schema: Schema, old: ColdStore, batch_rows: int) -> Iterator[Change]:
    for rows in old.scan(batch_rows):
        yield _change(name, RowBlock(schema, 0), rows)


def _unchanged(rows: RowBlock, exists: Mask, old: RowBlock, existed: Mask) -> Mask:
    """Return which rows are bitwise equal to the old ones. exists, existed: which keys have a row in `rows`, `old`."""
    both = exists & existed
    same = np.zeros(len(rows), np.bool_)
    new_index, old_index = both[exists], both[existed]
    same[new_index] = (
        (rows.words[new_index] == old.words[old_index]).all(axis=1)
        & (rows.scores[new_index].view(np.uint64) == old.scores[old_index].view(np.uint64))
        & (rows.steps[new_index] == old.steps[old_index])
    )
    return same


def _of_other_names(rows: RowBlock, exists: Mask, old: RowBlock, existed: Mask) -> Mask:
    """Return which of the keys with a row in both `rows` and `old` stand for two strings with the same hash."""
    both = exists & existed
    return np.asarray(keys_of(rows.select(both[exists])) != keys_of(old.select(both[existed])), np.bool_)


def _change(name: str, rows: RowBlock, removed: RowBlock) -> Change:
    slots = rows.slots_by_name()
    return Change(name, keys_of(rows), rows.embeddings(), slots, rows.scores, rows.steps, keys_of(removed))
