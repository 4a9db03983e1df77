"""Checkpoints of a cluster, pulled: as one of a single store, and as the store of a shard, whatever shards there were.

If the checkpoint has a shard with exactly the buckets that are wanted, its files are used. Otherwise the rows of these
buckets are read from the shards that have them, in key order, and written as finished files (gathering). Raises what
kvemb.restore and CheckpointManager.pull raise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvemb import opening
from kvemb.cluster.durability.gathering import Part, gather, gather_buckets
from kvemb.cluster.durability.manifest import ClusterManifest, ShardEntry
from kvemb.cluster.durability.offline import found
from kvemb.cluster.durability.series import ClusterSeries
from kvemb.durability import fresh_files, layout, paths
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.meter import Meter, Progress
from kvemb.offline.remote import SHARDS, Described
from kvemb.offline.transfer import JOBS
from kvemb.store import Store

RECEIVED = "received"
# Calls that a checkpoint contains, by client: `answered`, then numbers (kvemb.cluster.ledger).
StoredCalls = dict[str, list[int]]


class ClusterRemote(ClusterSeries):
    """The checkpoints of a cluster, read as those of one store are: kvemb.offline.places.Source."""

    def described(self, number: int) -> Described:
        """See Source. Its files are those of all shards."""
        found, files, attached = self.read(number), dict[str, int](), dict[str, int]()
        for at, shard in enumerate(found.shards):
            part = self.of_shard(shard.store).described(number)
            files |= {f"{SHARDS}/{shard.store}/{name}": nbytes for name, nbytes in part.files.items()}
            attached = attached if at else part.attached
        kind = f"checkpoint {number} of a cluster of {len(found.shards)} shards"
        parent = found.follows[-1] if found.follows else None
        return Described(
            kind, found.id, parent, found.created, found.variables, dict(sorted(files.items())), attached, found.extra
        )

    def id_of(self, number: int) -> str:
        """See Source."""
        return self.read(number).id

    def pull(
        self,
        number: int,
        target: Path,
        have: Iterable[Checkpoint],
        received: Path,
        *,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> None:
        """See Source. progress(done, total): called with bytes that are transferred, then with rows."""
        described, before = self.read(number), None
        for other in have:
            mine = inside(other)
            if mine.store == described.store and mine.point < number:
                before = other if before is None or inside(before).point < mine.point else before
        parts = self.pulled(number, described, list(described.shards), received, jobs=jobs, progress=progress)
        rows = sum(entry.rows for entry in described.variables.values())
        gather(parts, described, number, target, Meter(rows, progress), before)
        fresh_files.remove(received)

    def pulled(
        self,
        number: int,
        described: ClusterManifest,
        shards: list[ShardEntry],
        folder: Path,
        *,
        jobs: int = JOBS,
        progress: Progress | None = None,
    ) -> list[Part]:
        """Copy some shards' checkpoints to folders of `folder`. One that is there already is not copied again.

        Raises Corruption if one is not what belongs to the cluster's.
        """
        nbytes = sum(self.of_shard(shard.store).nbytes(number) for shard in shards) if progress is not None else 0
        meter, parts = Meter(nbytes, progress), []
        for shard in shards:
            fresh_files.make_directory(folder / shard.store)
            target, before = folder / shard.store / series_name(number), 0

            def count(done: int, total: int) -> None:
                nonlocal before
                meter(done - before)
                before = done

            if not layout.is_checkpoint(target):
                received = folder / shard.store / layout.PULLED
                self.of_shard(shard.store).pull(number, target, [], received, jobs=jobs, progress=count)
            checkpoint = Checkpoint(target)
            if checkpoint.id != described.id_of(shard):
                raise Corruption(
                    f"checkpoint {series_name(number)} of the shard {shard.store} at {self.url} is another one than "
                    "its cluster's; use another checkpoint"
                )
            parts.append((shard, checkpoint))
        return parts


def restored(
    series: ClusterRemote,
    number: int,
    described: ClusterManifest,
    buckets: tuple[int, int],
    path: Path,
    scratch: Path,
    meter: Meter,
    **how: Any,
) -> tuple[Store, StoredCalls]:
    """Make and open the store at path with the rows of these buckets, first and last, as checkpoint `number` has them.

    Returns also the calls that made these rows. scratch: a folder for what is pulled. meter: counts rows. how:
    arguments of kvemb.open. If a shard has exactly these buckets, the pulled checkpoint stays in scratch, so that the
    next push shares its files.
    """
    sources = described.overlapping(*buckets)
    if len(sources) == 1 and (sources[0].first, sources[0].last) == buckets:
        ((_, checkpoint),) = parts = series.pulled(number, described, sources, scratch / RECEIVED)
        kept = scratch / series_name(number)
        os.rename(checkpoint.path, kept)
        fresh_files.remove(scratch / RECEIVED)
        store = opening.restore(kept, path, **how)
        meter(sum(entry.rows for entry in checkpoint.variables.values()))
        return store, made_on(parts)
    parts = series.pulled(number, described, sources, scratch / RECEIVED)
    made = gather_buckets(parts, described, buckets, scratch / "gathered", meter)
    store, calls = opening.restore(made.path, path, **how), made_on(parts)
    for left in (made.path, scratch / RECEIVED):
        fresh_files.remove(left)
    return store, calls


def made_on(parts: list[Part]) -> StoredCalls:
    """Return the calls that were made on any of these shards: on one means on all, as a checkpoint has whole calls."""
    made: StoredCalls = {}
    for _, checkpoint in parts:
        for client, (answered, *numbers) in checkpoint.extra.get("calls", {}).items():
            before, *known = made.get(client, [0])
            made[client] = [max(before, answered), *sorted({*known, *numbers})]
    return made


def pull_files(
    url: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    number: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Path]:
    """Copy the files that a checkpoint of a cluster has beside the rows to a new folder; returns their paths, by name.

    url, options: of the cluster. number: of the checkpoint; None: the newest. The folder has all files, or it does not
    exist. Raises CheckpointNotFound, FileExistsError, TransferError, ColdStoreError; Corruption naming a file;
    TypeError, ValueError.
    """
    series, place = ClusterRemote(url, options), paths.local(folder, "folder").absolute()
    at, described = found(series, number)
    return series.of_shard(described.shards[0].store).pull_attached(at, place)
