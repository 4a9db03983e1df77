"""Reads, verifies and reshards the checkpoints of a cluster, without opening the cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MOST_SERIES
from kvemb.cluster.manifest import ClusterManifest, ShardEntry, ranges
from kvemb.cluster.restoring import restored
from kvemb.cluster.router import BUCKETS
from kvemb.cluster.series import ClusterSeries
from kvemb.durability import fresh_files, layout, paths
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.layout import series_name
from kvemb.errors import CheckpointNotFound, Corruption, UnsupportedFormat
from kvemb.meter import Meter, Progress
from kvemb.offline.remote_checking import RemoteChecking
from kvemb.offline.verification import Verification

# The memory budget of a shard's store while it is rewritten; rows do not pass through its hot tier.
BUDGET = "32MiB"


def is_series(path: str | os.PathLike[str]) -> bool:
    """Whether path is a directory with checkpoints of a cluster. Raises TypeError or ValueError if it is not a path."""
    return paths.is_cluster_series(paths.local(path))


def latest(
    url: str | os.PathLike[str], *, number: int | None = None, options: Mapping[str, Any] | None = None
) -> tuple[int, ClusterManifest]:
    """Return a checkpoint of a cluster with its number; number None: the newest.

    It has `id`, `created`, `variables` and `shards`. Raises CheckpointNotFound, Corruption, UnsupportedFormat,
    TransferError; TypeError, ValueError.
    """
    return _found(ClusterSeries(url, options), number)


def _found(series: ClusterSeries, number: int | None) -> tuple[int, ClusterManifest]:
    if number is not None:
        return number, series.read(as_int(number, "number", 0, MOST_SERIES))
    if (newest := series.newest()) is None:
        raise CheckpointNotFound(f"there is no checkpoint of a cluster at {series.url}")
    return newest


def verify(
    url: str | os.PathLike[str],
    *,
    deep: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Return what is wrong with the checkpoints of a cluster: their manifests, and all that shards pushed for them.

    deep: every byte is read. progress(done, total): called with bytes, of one shard after the other. Changes nothing.
    Raises CheckpointNotFound if there is none; TransferError.
    """
    series = ClusterSeries(url, options)
    found = Verification(series.url, bool(deep))
    if not (numbers := series.numbers()):
        raise CheckpointNotFound(f"there is no checkpoint of a cluster at {series.url}")
    needed: dict[str, dict[int, str]] = defaultdict(dict)
    for number in numbers:
        try:
            described = series.read(number)
        except (Corruption, UnsupportedFormat) as error:
            found.findings.append(str(error))
            continue
        found.rows = {name: entry.rows for name, entry in described.variables.items()}
        for shard in described.shards:
            needed[shard.store][number] = shard.id
    for store, wanted in needed.items():
        place = series.place_of_shard(store)
        try:
            checked = RemoteChecking(place, options).check(deep=bool(deep), progress=progress)
        except CheckpointNotFound as error:
            found.findings.append(str(error))
            continue
        found.findings += checked.findings
        found.files, found.nbytes = found.files + checked.files, found.nbytes + checked.nbytes
        for number, id in wanted.items():
            there = checked.described.get(number)
            if there is None or there.described.id != id:
                what = "is missing" if there is None else "is another one than its cluster's"
                found.findings.append(f"checkpoint {series_name(number)} at {place} {what}")
    return found


def reshard(
    url: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shards: int,
    number: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a checkpoint of a cluster again for another number of shards, as the next one at out; returns its number.

    url, out: of the two series, which may be one. number: of the checkpoint; None: the newest. scratch: a directory
    for one shard at a time; None: the system's temporary directory. progress(done, total): called with rows. Memory
    does not grow with the table. Raises Locked if a cluster has the directory out open; TypeError, ValueError; what
    kvemb.cluster.restore and CheckpointManager.push raise.
    """
    count = as_int(shards, "shards", 1, BUCKETS)
    source, target = ClusterSeries(url, options), ClusterSeries(out, options)
    at, described = _found(source, number)
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch").absolute()
    with layout.as_cold_store_error(f"write to {root}"):
        fresh_files.make_directory(root)
        folder = Path(tempfile.mkdtemp(prefix="kvemb-reshard-", dir=root))
    lock = target.lock()
    try:
        meter = Meter(sum(entry.rows for entry in described.variables.values()), progress)
        made, next_number = [], target.next_number()
        for place, buckets in enumerate(ranges(count)):
            here = folder / str(place)
            made.append(_rewritten(source, at, described, buckets, target, next_number, here, meter))
            shutil.rmtree(here)
        target.publish(next_number, replace(described, id=uuid.uuid4().hex, created=time.time(), shards=tuple(made)))
        return next_number
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.close()


def _rewritten(
    source: ClusterSeries,
    at: int,
    described: ClusterManifest,
    buckets: tuple[int, int],
    target: ClusterSeries,
    number: int,
    folder: Path,
    meter: Meter,
) -> ShardEntry:
    """Make one shard of a checkpoint, and push it."""
    store, calls = restored(
        source, at, described, buckets, folder / "store", folder / "received", meter, memory_budget=BUDGET
    )
    with store:
        checkpoint: Checkpoint = store.checkpoint(folder / series_name(number), extra={"calls": calls})
        target.of_shard(store.id).push(checkpoint, number)
        return ShardEntry(*buckets, store.id, checkpoint.id)
