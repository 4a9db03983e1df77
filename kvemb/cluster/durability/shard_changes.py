"""What changed between checkpoints of a cluster, as epochs of a single store's checkpoint (kvemb.durability.changes).

If all shards know what changed since the earlier checkpoint, their keys are joined; otherwise whole tables are
compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kvemb import fresh_files
from kvemb.cluster.durability.manifest import MAX_FOLLOWED, ClusterManifest, ShardEntry, id_of_part
from kvemb.durability import cold_databases, layout
from kvemb.durability.changes import recorded
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.delta import differing
from kvemb.durability.epochs import dropped_variables, files_of, since
from kvemb.durability.keyfile import merged, write_keys
from kvemb.durability.manifest import Epoch, EpochChanges, Manifest
from kvemb.durability.readable import ReadableCheckpoint, opened
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.offline.merging import aligned
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered

# Rows that are compared at a time.
BATCH_ROWS = 16_384


class ShardPart(NamedTuple):
    """A shard's part of a checkpoint, pulled. path: a folder with all or some of its files. described: its manifest."""

    shard: ShardEntry
    path: Path
    described: Manifest

    def since(self, checkpoint: str) -> list[Epoch] | None:
        """Return what changed in the shard since a checkpoint of the cluster, None if that is not known."""
        return since(self.described.changes, id_of_part(checkpoint, self.shard.store))


class _KeyFiles:
    """The key files in the folder changes/ of a checkpoint that is being made."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._last = folder, 0

    def write(self, keys: Iterator[Ordered]) -> list[str]:
        """Write ascending keys; returns the names of their files, an empty list if there are no keys."""
        self._folder.mkdir(exist_ok=True)
        path = self._next()
        if write_keys(path, keys) == 0:
            path.unlink()
            return []
        return [path.name]

    def link(self, folder: Path, epochs: list[Epoch]) -> list[Epoch]:
        """Link the key files of another checkpoint's epochs from folder; returns the epochs with the new names."""
        names = {}
        for file in sorted(files_of(epochs)):
            self._folder.mkdir(exist_ok=True)
            names[file] = self._next().name
            fresh_files.link_or_copy(folder / file, self._folder / names[file])

        def renamed(changed: EpochChanges) -> EpochChanges:
            return replace(changed, files=[names[file] for file in changed.files])

        return [
            replace(epoch, variables={name: renamed(changed) for name, changed in epoch.variables.items()})
            for epoch in epochs
        ]

    def _next(self) -> Path:
        self._last += 1
        return self._folder / layout.keys_name(self._last)


def write_changes(
    parts: list[ShardPart], described: ClusterManifest, before: Checkpoint | None, folder: Path, made: Manifest
) -> list[Epoch]:
    """Write what changed since which checkpoint; returns the epochs. folder: with the rows of made. See gather()."""
    keys = _KeyFiles(folder / layout.CHANGES)
    known = [id for id in described.follows if all(part.since(id) is not None for part in parts)]
    if before is None:
        # Without any, the epoch begins with an id that no checkpoint has.
        return _recorded(parts, known, keys) or [Epoch(id_of_part(described.id, described.store))]
    if before.id in known:
        later = _recorded(parts, known[known.index(before.id) :], keys)
    else:
        later = [_compared(before, folder, made, keys)]
    earlier = inside(before).changes[-max(1, MAX_FOLLOWED - len(later)) :]
    return [*keys.link(before.path / layout.CHANGES, earlier), *later]


def _recorded(parts: list[ShardPart], known: list[str], keys: _KeyFiles) -> list[Epoch]:
    """Write what changed since each of some earlier checkpoints of the cluster. REQUIRES: all shards know it."""
    epochs = []
    for begin, end in zip(known, [*known, None][1:], strict=True):
        spans = [_span(part, begin, end) for part in parts]
        epoch = Epoch(begin)
        for name in sorted({name for span in spans for each in span for name in each.variables}):
            pairs = zip(parts, spans, strict=True)
            found = [recorded(part.path / layout.CHANGES, span, name) for part, span in pairs]
            gone = {name in dropped_variables(span) for span in spans}
            cleared = {cleared for cleared, _ in found}
            if len(gone) > 1 or len(cleared) > 1:
                raise Corruption(f"the shards do not agree whether {name!r} was cleared; use another checkpoint")
            files = keys.write(merged([each for _, each in found]))
            epoch.variables[name] = EpochChanges(cleared.pop(), files, gone.pop())
        epochs.append(epoch)
    return epochs


def _span(part: ShardPart, begin: str, end: str | None) -> list[Epoch]:
    """Return the epochs of a shard between two checkpoints of the cluster. end: None: until this one."""
    epochs, later = part.since(begin), None if end is None else part.since(end)
    assert epochs is not None
    return epochs if later is None else epochs[: len(epochs) - len(later)]


def _compared(before: Checkpoint, folder: Path, made: Manifest, keys: _KeyFiles) -> Epoch:
    """Write the keys of rows that differ from an earlier checkpoint. folder: with the rows of made."""
    earlier = inside(before)
    epoch = Epoch(before.id)
    database = cold_databases.to_read(folder / layout.ROWS, made)
    try:
        with opened(before.path, earlier) as old:
            after = ReadableCheckpoint(folder, made, database)
            for name in sorted({*earlier.variables, *made.variables}):
                epoch.variables[name] = _differences(name, old, after, keys.write)
    finally:
        database.close()
    for left in (folder / layout.ROWS).glob("LOG*"):
        left.unlink()
    return epoch


def _differences(
    name: str, before: ReadableCheckpoint, after: ReadableCheckpoint, write: Callable[[Iterator[Ordered]], list[str]]
) -> EpochChanges:
    old, new = before.rows(name), after.rows(name)
    if new is None:
        return EpochChanges(cleared=True, dropped=True)
    schema = after.described.variables[name].schema
    if old is not None and before.described.variables[name].schema == schema:
        pairs = aligned([old.scan(BATCH_ROWS), new.scan(BATCH_ROWS)], schema, BATCH_ROWS)
        return EpochChanges(files=write(keys for was, now in pairs if len(keys := differing(was, now, schema))))
    nothing = RowBlock(schema, 0)
    files = write(differing(nothing, block, schema) for block in new.scan(BATCH_ROWS))
    return EpochChanges(cleared=True, files=files, dropped=old is not None)
