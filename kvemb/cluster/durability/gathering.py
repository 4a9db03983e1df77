"""Merges the checkpoints of a cluster's shards into one of a single store: all rows, in key order.

The result records what changed since earlier checkpoints of the cluster (epochs). So it can be used like any checkpoint
of a single store: opened, compared, restored, and applied to a replica. Memory does not grow with the table; the disk
holds the pulled files and the new ones at the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from kvemb import fresh_files
from kvemb.cluster.durability.admission_counters import join_counters, stored_by
from kvemb.cluster.durability.cluster_series import Published
from kvemb.cluster.durability.manifest import ClusterManifest, id_of_part
from kvemb.cluster.durability.shard_changes import ShardPart, write_changes
from kvemb.cluster.router import BUCKETS, buckets_of
from kvemb.durability import layout
from kvemb.durability.admission_counters.counter_file import CounterFile
from kvemb.durability.checkpoint import Checkpoint, atomic_directory, complete
from kvemb.durability.hotset import read_hot
from kvemb.durability.keyfile import merged as merged_keys
from kvemb.durability.keyfile import write_keys
from kvemb.durability.manifest import Epoch, Manifest
from kvemb.durability.readable import ReadableCheckpoint, opened
from kvemb.errors import Corruption
from kvemb.offline.applying import apply, write_rows
from kvemb.offline.delta_file import DeltaFile
from kvemb.offline.merging import merged
from kvemb.progress import Meter
from kvemb.rows.block import RowBlock

# Rows read from a shard at a time.
BATCH_ROWS = 16_384
ALL = (0, BUCKETS - 1)
# The rows of a variable, in key order.
Rows = Callable[[str], Iterator[RowBlock]]


def gather(parts: list[ShardPart], wanted: Published, target: Path, meter: Meter, before: Checkpoint | None) -> None:
    """Write a checkpoint of a cluster to target, as a checkpoint of a single store.

    parts: all shards, in order. meter: counts rows. before: an earlier checkpoint of the table, made by this function;
    if the shards do not know what changed since, the whole tables are compared. Raises Corruption if rows are missing;
    FileExistsError, ColdStoreError.
    """
    with atomic_directory(target) as folder:
        with ExitStack() as stack:
            counts = _write(folder, wanted.described, _rows_of(stack, parts, wanted.described, ALL), meter)
        for name, entry in wanted.described.variables.items():
            if counts[name] != entry.rows:
                raise Corruption(
                    f"checkpoint {wanted.number} of the cluster has {counts[name]:,} rows of {name!r} and should have "
                    f"{entry.rows:,}; use another checkpoint"
                )
        _complete(folder, parts, wanted, before)


def gather_changes(
    parts: list[ShardPart],
    deltas: list[list[DeltaFile]],
    wanted: Published,
    target: Path,
    before: Checkpoint,
) -> None:
    """Do the same as gather(), from an earlier checkpoint and the deltas since.

    parts: without rows. deltas: of each shard, those that lead from its part of `before` to here.
    """
    with atomic_directory(target) as folder:
        layout.unpack(before.path, folder, [])
        apply(folder / layout.ROWS, wanted.described.variables, deltas)
        _complete(folder, parts, wanted, before)


def gather_buckets(
    parts: list[ShardPart], described: ClusterManifest, buckets: tuple[int, int], target: Path, meter: Meter
) -> Checkpoint:
    """Write the rows of some buckets, first and last, as the checkpoint of a new shard: write_part()."""
    with ExitStack() as stack:
        return write_part(parts, described, buckets, _rows_of(stack, parts, described, buckets), target, meter)


def write_part(
    parts: list[ShardPart],
    described: ClusterManifest,
    buckets: tuple[int, int],
    rows: Rows,
    target: Path,
    meter: Meter,
) -> Checkpoint:
    """Write the part of a cluster's checkpoint that a new shard has, as the checkpoint of a store of its own.

    parts: the old shards that have any of its buckets; their rows may be gone. buckets: its first and its last. The
    shard with the first bucket gets the files saved beside the rows. Other arguments as for gather().
    """
    with atomic_directory(target) as folder:
        counts = _write(folder, described, rows, meter)
        variables = {name: replace(entry, rows=counts[name]) for name, entry in described.variables.items()}
        store = uuid.uuid4().hex
        made = Manifest(store, id_of_part(described.id, store), None, 1, described.created, variables)
        made = replace(made, changes=[Epoch(store)], sightings=_write_counter_files(folder, parts, 1))
        if buckets[0] == 0:
            _link_attached(folder, parts[0])
        complete(folder, made)
    return Checkpoint(target)


def _complete(folder: Path, parts: list[ShardPart], wanted: Published, before: Checkpoint | None) -> None:
    """Write everything except the rows, which are already in folder."""
    number, described = wanted
    parent = described.follows[-1] if described.follows else None
    made = Manifest(described.store, described.id, parent, number, described.created, dict(described.variables))
    made = replace(made, extra=described.extra, hot=_write_hot(folder, parts, number, described))
    made = replace(made, sightings=_write_counter_files(folder, parts, number))
    _link_attached(folder, parts[0])
    made = replace(made, changes=write_changes(parts, described, before, folder, made))
    complete(folder, made, None if before is None else before.path)


def _link_attached(folder: Path, first: ShardPart) -> None:
    """Link the files that the first shard has beside the rows."""
    for name in first.described.attached:
        (folder / layout.FILES).mkdir(exist_ok=True)
        fresh_files.link_or_copy(first.path / name, folder / name)


def _write(folder: Path, described: ClusterManifest, rows: Rows, meter: Meter) -> dict[str, int]:
    """Write rows; returns how many each variable has."""
    counts = dict.fromkeys(described.variables, 0)

    def counted(name: str) -> Iterator[RowBlock]:
        for block in rows(name):
            counts[name] += len(block)
            meter(len(block))
            yield block

    write_rows(folder / layout.ROWS, dict(sorted(described.variables.items())), counted)
    return counts


def _rows_of(stack: ExitStack, parts: list[ShardPart], described: ClusterManifest, buckets: tuple[int, int]) -> Rows:
    """Open shards until the end of the stack; returns the rows of some buckets that they have."""
    sources = [stack.enter_context(opened(part.path, part.described)) for part in parts]

    def rows(name: str) -> Iterator[RowBlock]:
        streams = [_chosen(source, name, buckets) for source in sources]
        return merged(streams, described.variables[name].schema, BATCH_ROWS)

    return rows


def _chosen(source: ReadableCheckpoint, name: str, buckets: tuple[int, int]) -> Iterator[RowBlock]:
    cold = source.rows(name)
    assert cold is not None
    for block in cold.scan(BATCH_ROWS):
        if buckets == ALL:
            yield block
        else:
            bucket = buckets_of(block.keys)
            yield block.select((bucket >= buckets[0]) & (bucket <= buckets[1]))


def _write_counter_files(folder: Path, parts: list[ShardPart], number: int) -> dict[str, CounterFile]:
    return join_counters([stored_by(part) for part in parts], folder / layout.COUNTERS, number)


def _write_hot(folder: Path, parts: list[ShardPart], number: int, described: ClusterManifest) -> dict[str, list[str]]:
    """Write which rows were hot on any shard; returns the files by variable."""
    sets = {}
    for at, name in enumerate(sorted(described.variables)):
        hot = [(part.path / layout.HOT, part.described.hot[name]) for part in parts if name in part.described.hot]
        if hot:
            (folder / layout.HOT).mkdir(exist_ok=True)
            file = layout.indexed_name(number, at)
            write_keys(folder / layout.HOT / file, merged_keys([read_hot(place, files) for place, files in hot]))
            sets[name] = [file]
    return sets
