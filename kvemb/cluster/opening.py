"""Opens a cluster, and makes a single store of a cluster's checkpoint. See kvemb.cluster.store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_int
from kvemb.checks.ranges import MOST_SERIES
from kvemb.cluster import ray_transport
from kvemb.cluster.checkpointing import Checkpointing
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.folders import delete, new_folder
from kvemb.cluster.local import LocalTransport
from kvemb.cluster.making import Plan
from kvemb.cluster.manifest import ClusterManifest
from kvemb.cluster.restoring import restored
from kvemb.cluster.router import BUCKETS
from kvemb.cluster.series import ClusterSeries
from kvemb.cluster.store import Store
from kvemb.durability import fresh_files, layout, paths
from kvemb.durability.manifest import VariableEntry
from kvemb.errors import CheckpointNotFound
from kvemb.limits import Limits
from kvemb.meter import Meter, Progress
from kvemb.options import parse_budget, parse_device_memory
from kvemb.store import Store as OneStore


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    shards: int | None = None,
    memory_budget: int | str = "1GiB",
    scratch: str | os.PathLike[str] | None = None,
    transport: Literal["ray", "local"] = "ray",
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
) -> Store:
    """Open a cluster of shards, in the state of the newest checkpoint at url.

    url: where its checkpoints are: a directory, or a URL that fsspec supports. None: it has no checkpoints, and its
    rows are lost when it is closed. shards: how many, from 1 to 4,096; None: as many as the checkpoint has. If the
    checkpoint has as many, its files are used; otherwise its rows are read and loaded again. memory_budget: of each
    shard, bytes or text. scratch: a directory for the shards' files, made if it is missing; each shard has a folder
    there, deleted when the cluster is closed. None: the system's temporary directory. transport: "ray": each shard is
    an actor of the Ray cluster to which ray.init() connected, or that RAY_ADDRESS names; scratch is on the shard's
    node, and url must be reachable from there. "local": shards are in this process. options: fsspec's for the url.
    progress(done, total): called with the number of rows loaded. limits: of each shard's store (kvemb.limits).

    Raises TypeError or ValueError for arguments; Locked if a cluster has this directory open, or has this url open on
    the same Ray cluster (nothing else keeps two from writing to a url); BackendUnavailable without Ray; ColdStoreError
    if scratch cannot be written to; what CheckpointManager.pull and kvemb.restore raise.
    """
    parse_budget(memory_budget)
    if transport not in ("ray", "local"):
        raise ValueError(f"transport must be 'ray' or 'local', got {brief(transport)}")
    if transport == "ray":
        ray_transport.ray_here()
    wanted = None if shards is None else as_int(shards, "shards", 1, BUCKETS)
    series = None if url is None else ClusterSeries(url, options)
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch").absolute()
    how: dict[str, Any] = {"memory_budget": memory_budget, "limits": limits}
    with ExitStack() as undo:
        checkpointing, newest = None, None
        if series is not None:
            checkpointing = Checkpointing(series, series.lock())
            undo.callback(checkpointing.close)
            newest = series.newest()
            checkpointing.last = newest[0] if newest else None
        if (count := wanted or (len(newest[1].shards) if newest else None)) is None:
            raise ValueError(f"shards must be given, as there is no checkpoint at {url}")
        meter = Meter(_rows(newest[1]) if newest else 0, progress)
        plan = Plan(count, series.url if series else None, series.options if series else {}, newest, how)
        path = None if series is None else series.url
        stored = newest[1].variables if newest else None
        if transport == "ray":
            place = None if scratch is None else str(root)
            cluster = Cluster(ray_transport.RayTransport(plan, place, meter), path or "on Ray", lambda: None, stored)
        else:
            cluster = _local(plan, root, meter, path, stored, undo)
        undo.pop_all()
    return Store(cluster, checkpointing)


def _local(
    plan: Plan, root: Path, meter: Meter, path: str | None, stored: dict[str, VariableEntry] | None, undo: ExitStack
) -> Cluster:
    """Return a cluster whose shards are in this process, and have their files in a new folder of root."""
    folder, lock = new_folder(root, "kvemb-cluster-")
    release = partial(delete, folder, lock)
    undo.callback(release)
    made = LocalTransport(lambda number: plan.make(number, folder / f"shard-{number:04d}", meter), plan.shards)
    return Cluster(made, path or str(folder), release, stored)


def restore(
    url: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    number: int | None = None,
    memory_budget: int | str = "1GiB",
    device_memory: int | str | None = None,
    variables: Collection[str] | None = None,
    durability: Literal["checkpoint", "write"] = "checkpoint",
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
) -> OneStore:
    """Make a new store of one machine at path from a checkpoint of a cluster, and open it.

    url: of the cluster. number: of the checkpoint; None: the newest. variables: take only these. memory_budget,
    device_memory, durability, limits: as for kvemb.open. options: fsspec's for the url. progress(done, total): called
    with rows.
    The rows of several shards are read in key order and loaded, in memory that does not grow with the table. The
    shards' files are copied to a temporary folder beside path.
    Raises CheckpointNotFound, FileExistsError, KeyError for a name; TransferError, Corruption, ColdStoreError;
    TypeError, ValueError.
    """
    parse_budget(memory_budget)
    parse_device_memory(device_memory)
    series, place = ClusterSeries(url, options), paths.local(path).absolute()
    number = None if number is None else as_int(number, "number", 0, MOST_SERIES)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise FileExistsError(f"{place} exists and is not empty; name a new directory to restore to")
    layout.check_outside_stores(place, "new store")
    found = series.newest() if number is None else (number, series.read(number))
    if found is None:
        raise CheckpointNotFound(f"there is no checkpoint of a cluster at {url}")
    described = found[1].only(variables, str(url))
    how: dict[str, Any] = {"memory_budget": memory_budget, "device_memory": device_memory}
    how |= {"durability": durability, "limits": limits}
    with layout.as_cold_store_error(f"write to {place.parent}"):
        fresh_files.make_directory(place.parent)
        folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        meter = Meter(_rows(described), progress)
        return restored(series, found[0], described, (0, BUCKETS - 1), place, folder, meter, **how)[0]
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(described: ClusterManifest) -> int:
    return sum(entry.rows for entry in described.variables.values())
