"""One checkpoint made of those of a cluster's shards: all their rows, in key order, as a single store has them.

It says what changed since earlier checkpoints of the cluster, as far as all shards know that. So what a single store's
checkpoints can do, this one can: it is opened, compared, restored, and a replica is brought to it. Memory does not grow
with the table; the disk has the shards' files and its own at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kvemb.cluster.durability.manifest import MOST_FOLLOWED, ClusterManifest, ShardEntry, id_of_part
from kvemb.cluster.router import BUCKETS, buckets_of
from kvemb.durability import changes, cold_databases, fresh_files, layout
from kvemb.durability.changes import dropped, recorded
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.delta import differing
from kvemb.durability.hotset import read_hot
from kvemb.durability.keyfile import merged as merged_keys
from kvemb.durability.keyfile import write_keys
from kvemb.durability.manifest import Changed, Epoch, Manifest
from kvemb.durability.readable import Readable, opened
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.meter import Meter
from kvemb.offline.applying import write_rows
from kvemb.offline.merging import aligned, merged
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import Ordered

# Rows read from a shard at a time.
BATCH_ROWS = 16_384
ALL = (0, BUCKETS - 1)
# A shard's part of a checkpoint, pulled.
Part = tuple[ShardEntry, Checkpoint]


def gather(
    parts: list[Part], described: ClusterManifest, number: int, target: Path, meter: Meter, before: Checkpoint | None
) -> Checkpoint:
    """Write checkpoint `number` of a cluster to target, as one of a single store, and return it.

    parts: all shards, in order. meter: counts rows. before: an earlier one of the table, made by this function: if the
    shards do not know what changed since, whole tables are compared. Raises Corruption if rows are missing;
    FileExistsError, ColdStoreError.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(atomic_directory(target))
        sources = _opened(parts, stack)
        counts = _write(folder, sources, described, ALL, meter)
        for name, entry in described.variables.items():
            if counts[name] != entry.rows:
                raise Corruption(
                    f"checkpoint {number} of the cluster has {counts[name]:,} rows of {name!r} and should have "
                    f"{entry.rows:,}; use another checkpoint"
                )
        parent = described.follows[-1] if described.follows else None
        made = Manifest(described.store, described.id, parent, number, described.created, dict(described.variables))
        made = replace(made, extra=described.extra, hot=_write_hot(folder, parts, number, described))
        _link_attached(folder, parts[0][1])
        complete(folder, replace(made, changes=_changes(parts, described, before, folder, made)))
    return Checkpoint(target)


def gather_buckets(
    parts: list[Part], described: ClusterManifest, buckets: tuple[int, int], target: Path, meter: Meter
) -> Checkpoint:
    """Write the rows of some buckets, first and last, as the checkpoint of a new store with an identity of its own.

    parts: the shards that have these buckets. Otherwise as gather().
    """
    with ExitStack() as stack:
        folder = stack.enter_context(atomic_directory(target))
        counts = _write(folder, _opened(parts, stack), described, buckets, meter)
        variables = {name: replace(entry, rows=counts[name]) for name, entry in described.variables.items()}
        store = uuid.uuid4().hex
        made = Manifest(store, uuid.uuid4().hex, None, 1, described.created, variables, changes=[Epoch(store)])
        complete(folder, made)
    return Checkpoint(target)


def _opened(parts: list[Part], stack: ExitStack) -> list[Readable]:
    return [stack.enter_context(opened(checkpoint.path, inside(checkpoint))) for _, checkpoint in parts]


def _write(
    folder: Path, sources: list[Readable], described: ClusterManifest, buckets: tuple[int, int], meter: Meter
) -> dict[str, int]:
    """Write the rows of some buckets; returns how many each variable has."""
    counts = dict.fromkeys(described.variables, 0)

    def rows(name: str) -> Iterator[RowBlock]:
        schema = described.variables[name].schema
        streams = [_chosen(source, name, buckets) for source in sources]
        for block in merged(streams, schema, BATCH_ROWS):
            counts[name] += len(block)
            meter(len(block))
            yield block

    write_rows(folder / layout.ROWS, dict(sorted(described.variables.items())), rows, folder)
    return counts


def _chosen(source: Readable, name: str, buckets: tuple[int, int]) -> Iterator[RowBlock]:
    cold = source.rows(name)
    assert cold is not None
    for block in cold.scan(BATCH_ROWS):
        if buckets == ALL:
            yield block
        else:
            bucket = buckets_of(block.keys)
            yield block.select((bucket >= buckets[0]) & (bucket <= buckets[1]))


def _write_hot(folder: Path, parts: list[Part], number: int, described: ClusterManifest) -> dict[str, list[str]]:
    """Write which rows were hot on any shard; returns the files by variable."""
    sets = {}
    for at, name in enumerate(sorted(described.variables)):
        hot = [(each.path / layout.HOT, inside(each).hot[name]) for _, each in parts if name in inside(each).hot]
        if hot:
            (folder / layout.HOT).mkdir(exist_ok=True)
            file = layout.hot_name(number, at)
            write_keys(folder / layout.HOT / file, merged_keys([read_hot(place, files) for place, files in hot]))
            sets[name] = [file]
    return sets


def _link_attached(folder: Path, first: Checkpoint) -> None:
    for name in inside(first).attached:
        (folder / layout.FILES).mkdir(exist_ok=True)
        fresh_files.link_or_copy(first.path / name, folder / name)


class _KeyFiles:
    """The key files in the folder changes/ of a checkpoint that is being made."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._last = folder, 0

    def write(self, keys: Iterator[Ordered]) -> list[str]:
        """Write keys, ascending; returns the names of their files, none if there are no keys."""
        self._folder.mkdir(exist_ok=True)
        path = self._next()
        if write_keys(path, keys) == 0:
            path.unlink()
            return []
        return [path.name]

    def link(self, folder: Path, epochs: list[Epoch]) -> list[Epoch]:
        """Take over epochs of another checkpoint, whose key files are in folder; returns them with the new names."""
        names = {}
        for file in sorted(changes.files_of(epochs)):
            self._folder.mkdir(exist_ok=True)
            names[file] = self._next().name
            fresh_files.link_or_copy(folder / file, self._folder / names[file])

        def renamed(changed: Changed) -> Changed:
            return replace(changed, files=[names[file] for file in changed.files])

        return [
            Epoch(epoch.since, {name: renamed(changed) for name, changed in epoch.variables.items()})
            for epoch in epochs
        ]

    def _next(self) -> Path:
        self._last += 1
        return self._folder / layout.keys_name(self._last)


def _changes(
    parts: list[Part], described: ClusterManifest, before: Checkpoint | None, folder: Path, made: Manifest
) -> list[Epoch]:
    """Write what changed since which checkpoint; returns the epochs. folder: has the rows of made. Others: gather()."""
    keys = _KeyFiles(folder / layout.CHANGES)
    known = [
        id
        for id in described.follows
        if all(changes.since(inside(each).changes, id_of_part(id, shard.store)) is not None for shard, each in parts)
    ]
    if before is None:
        # Without any, it begins with what no other checkpoint has as its id.
        return _recorded(parts, known, keys) or [Epoch(id_of_part(described.id, described.store))]
    if before.id in known:
        later = _recorded(parts, known[known.index(before.id) :], keys)
    else:
        later = [_compared(before, folder, made, keys)]
    earlier = inside(before).changes[-max(1, MOST_FOLLOWED - len(later)) :]
    return [*keys.link(before.path / layout.CHANGES, earlier), *later]


def _recorded(parts: list[Part], known: list[str], keys: _KeyFiles) -> list[Epoch]:
    """Write what changed since each of some earlier checkpoints of the cluster, since which all shards know it."""
    epochs = []
    for begin, end in zip(known, [*known, None][1:], strict=True):
        spans = [_span(each, shard, begin, end) for shard, each in parts]
        epoch = Epoch(begin)
        for name in sorted({name for span in spans for each in span for name in each.variables}):
            found = [
                recorded(each.path / layout.CHANGES, span, name) for (_, each), span in zip(parts, spans, strict=True)
            ]
            gone = {name in dropped(span) for span in spans}
            cleared = {cleared for cleared, _ in found}
            if len(gone) > 1 or len(cleared) > 1:
                raise Corruption(f"the shards do not agree whether {name!r} was cleared; use another checkpoint")
            files = keys.write(merged_keys([each for _, each in found]))
            epoch.variables[name] = Changed(cleared.pop(), files, gone.pop())
        epochs.append(epoch)
    return epochs


def _span(checkpoint: Checkpoint, shard: ShardEntry, begin: str, end: str | None) -> list[Epoch]:
    """Return the epochs of a shard between two checkpoints of the cluster; end None: until this one."""
    epochs = changes.since(inside(checkpoint).changes, id_of_part(begin, shard.store))
    assert epochs is not None
    later = None if end is None else changes.since(epochs, id_of_part(end, shard.store))
    return epochs if later is None else epochs[: len(epochs) - len(later)]


def _compared(before: Checkpoint, folder: Path, made: Manifest, keys: _KeyFiles) -> Epoch:
    """Write what differs from an earlier checkpoint. folder: has the rows of made."""
    earlier = inside(before)
    epoch = Epoch(before.id)
    database = cold_databases.to_read(folder / layout.ROWS, made)
    try:
        with opened(before.path, earlier) as old:
            after = Readable(folder, made, database)
            for name in sorted({*earlier.variables, *made.variables}):
                epoch.variables[name] = _differences(name, old, after, keys.write)
    finally:
        database.close()
    for left in (folder / layout.ROWS).glob("LOG*"):
        left.unlink()
    return epoch


def _differences(
    name: str, before: Readable, after: Readable, write: Callable[[Iterator[Ordered]], list[str]]
) -> Changed:
    old, new = before.rows(name), after.rows(name)
    if new is None:
        return Changed(cleared=True, dropped=True)
    schema = after.described.variables[name].schema
    if old is not None and before.described.variables[name].schema == schema:
        pairs = aligned([old.scan(BATCH_ROWS), new.scan(BATCH_ROWS)], schema, BATCH_ROWS)
        return Changed(files=write(keys for was, now in pairs if len(keys := differing(was, now, schema))))
    nothing = RowBlock(schema, 0)
    files = write(differing(nothing, block, schema) for block in new.scan(BATCH_ROWS))
    return Changed(cleared=True, files=files, dropped=old is not None)
