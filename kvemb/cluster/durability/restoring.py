"""Pulls checkpoints of a cluster: to a single store's checkpoint, or to a shard's store, for any numbers of shards.

If the checkpoint has a shard with exactly the wanted buckets, the files of that shard are used. Otherwise the rows of
these buckets are read from all shards that have them, in key order, and written as finished files (gathering). Raises
what kvemb.restore and CheckpointManager.pull raise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvemb import fresh_files, opening
from kvemb.cluster.durability.cluster_series import ClusterSeries, Published
from kvemb.cluster.durability.gathering import gather, gather_buckets, gather_changes
from kvemb.cluster.durability.manifest import ShardEntry, id_of_part
from kvemb.cluster.durability.offline import found
from kvemb.cluster.durability.shard_changes import ShardPart
from kvemb.durability import inventory, layout, manifest, paths
from kvemb.durability.admission_counters.counter_file import CountersSize
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.engine.open_arguments import OpenArguments
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.offline.places import Source
from kvemb.offline.remote import SHARDS, CheckpointDescription
from kvemb.offline.transfer import PULLING, Pulling
from kvemb.progress import Meter
from kvemb.store import Store

RECEIVED = "received"


class ClusterRemote(ClusterSeries, Source):
    """The checkpoints of a cluster, from which checkpoints of a single store are pulled."""

    def described(self, number: int) -> CheckpointDescription:
        """Return the description: Source.described. The files are those of all shards."""
        found, files, attached = self.read(number), dict[str, int](), dict[str, int]()
        sightings: dict[str, CountersSize] = {}
        for at, shard in enumerate(found.shards):
            part = self.of_shard(shard.store).described(number)
            files |= {f"{SHARDS}/{shard.store}/{name}": nbytes for name, nbytes in part.files.items()}
            attached = attached if at else part.attached
            for name, counted in part.sightings.items():
                sightings[name] = sightings[name] + counted if name in sightings else counted
        kind = f"checkpoint {number} of a cluster of {len(found.shards)} shards"
        parent = found.follows[-1] if found.follows else None
        how = found.variables, dict(sorted(files.items())), attached, found.extra
        return CheckpointDescription(kind, found.id, parent, found.created, *how, sightings=sightings)

    def id_of(self, number: int) -> str:
        return self.read(number).id

    def store_of(self, number: int) -> str:
        return self.read(number).store

    def pull(
        self, number: int, target: Path, have: Iterable[Checkpoint], received: Path, how: Pulling = PULLING
    ) -> None:
        """Copy a checkpoint: Source.pull. how.progress is called with bytes transferred, then with rows.

        If one of `have` is an earlier checkpoint of the cluster from which all shards have deltas, only the deltas are
        transferred.
        """
        wanted = Published(number, self.read(number))
        store, shards = wanted.described.store, wanted.described.shards
        earlier = [each for each in have if inside(each).store == store and inside(each).point < number]
        newest_first = sorted(earlier, key=lambda each: inside(each).point, reverse=True)
        before = next((each for each in newest_first if _is_sound(each)), None)
        ids = {} if before is None else {shard: id_of_part(before.id, shard.store) for shard in shards}
        if before is not None and all(self.of_shard(each.store).leads_from(number, ids[each]) for each in shards):
            parts, deltas = [], []
            for shard, since in ids.items():
                folder = received / shard.store
                found, leading = self.of_shard(shard.store).pull_changes(number, since, folder, how)
                parts.append(self._checked(ShardPart(shard, folder, found), wanted))
                deltas.append(leading)
            gather_changes(parts, deltas, wanted, target, before)
        else:
            parts = self.pulled(wanted, list(shards), received, how)
            gather(parts, wanted, target, Meter(wanted.rows, how.progress), before)
        fresh_files.remove(received)

    def pulled(
        self, wanted: Published, shards: list[ShardEntry], folder: Path, how: Pulling = PULLING
    ) -> list[ShardPart]:
        """Copy some shards' checkpoints to folders of `folder`, except those that are already there.

        Raises Corruption if one does not belong to the cluster's checkpoint.
        """
        number, parts = wanted.number, []
        nbytes = sum(self.of_shard(shard.store).nbytes(number) for shard in shards) if how.progress is not None else 0
        meter = Meter(nbytes, how.progress)
        for shard in shards:
            fresh_files.make_directory(folder / shard.store)
            target, before = folder / shard.store / series_name(number), 0

            def count(done: int, total: int) -> None:
                nonlocal before
                meter(done - before)
                before = done

            if not layout.is_checkpoint(target):
                received = folder / shard.store / layout.PULLED
                self.of_shard(shard.store).pull(number, target, [], received, Pulling(how.jobs, count))
            parts.append(self._checked(ShardPart(shard, target, manifest.read(target)), wanted))
        return parts

    def _checked(self, part: ShardPart, wanted: Published) -> ShardPart:
        """Return a part. Raises Corruption if it does not belong to the cluster's checkpoint."""
        if part.described.id != wanted.described.id_of(part.shard):
            raise Corruption(
                f"checkpoint {series_name(wanted.number)} of the shard {part.shard.store} at {self._url} is not the "
                "one that the cluster's checkpoint names; use another checkpoint"
            )
        return part


def _is_sound(checkpoint: Checkpoint) -> bool:
    return not any(inventory.damages(checkpoint.path, inside(checkpoint), deep=False))


def restored(
    series: ClusterRemote,
    wanted: Published,
    buckets: tuple[int, int],
    path: Path,
    scratch: Path,
    meter: Meter,
    how: OpenArguments,
) -> Store:
    """Make and open a store at path with the rows of these buckets, first and last, of a checkpoint.

    scratch: a folder for pulled files. meter: counts rows. how: the store is opened. If a shard has exactly these
    buckets, its pulled checkpoint stays in scratch, so that the next push shares its files.
    """
    sources = wanted.described.overlapping(*buckets)
    if len(sources) == 1 and (sources[0].first, sources[0].last) == buckets:
        (part,) = series.pulled(wanted, sources, scratch / RECEIVED)
        kept = scratch / series_name(wanted.number)
        os.rename(part.path, kept)
        fresh_files.remove(scratch / RECEIVED)
        meter(sum(entry.rows for entry in part.described.variables.values()))
        return opening.restore(kept, path, how)
    parts = series.pulled(wanted, sources, scratch / RECEIVED)
    made = gather_buckets(parts, wanted.described, buckets, scratch / "gathered", meter)
    fresh_files.remove(scratch / RECEIVED)
    store = opening.restore(made.path, path, how)
    fresh_files.remove(made.path)
    return store


def pull_files(
    url: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    number: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Copy the files that were saved beside the rows of a cluster's checkpoint to a new folder.

    If this fails, the folder does not exist.

    Args:
        url: Where the cluster's checkpoints are: a directory or a URL.
        folder: The new folder.
        number: The number of the checkpoint. None: the newest.
        options: fsspec's options for the url's filesystem, a dict.

    Returns:
        A dict from each file's name to its path in the folder.

    Raises:
        CheckpointNotFound: There is no such checkpoint.
        FileExistsError: The folder exists.
        TransferError: The url could not be read.
        ColdStoreError: The folder could not be written.
        Corruption: A file differs from what was written. The message names it.
        TypeError, ValueError: An argument is not valid.

    Example:
        >>> import kvemb.cluster
        >>> with kvemb.cluster.open("series", shards=2, transport="local") as cluster:
        ...     saved = cluster.checkpoint(files={"dense.bin": b"weights"})
        >>> kvemb.cluster.pull_files("series", "dense")["dense.bin"].read_bytes()
        b'weights'
    """
    series, place = ClusterRemote(url, options), paths.local(folder, "folder")
    at, described = found(series, number)
    return series.of_shard(described.shards[0].store).pull_attached(at, place)
