"""Opens a cluster, and connects to one that is open (kvemb.cluster.store)."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal
from weakref import WeakValueDictionary, finalize

from kvemb.checks import open_file_limit
from kvemb.checks.brief import brief
from kvemb.checks.numeric import as_float, as_int
from kvemb.checks.ranges import MAX_SERIES
from kvemb.checks.seconds import as_seconds
from kvemb.cluster import ray_starting, ray_transport
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.coordination.coordinator import Coordinator
from kvemb.cluster.coordination.starting import ANSWER_SECONDS, OpenRequest, start
from kvemb.cluster.durability.cluster_series import ClusterSeries
from kvemb.cluster.local import DirectTransport, make_in_process
from kvemb.cluster.router import BUCKETS
from kvemb.cluster.store import Store
from kvemb.durability import paths
from kvemb.engine.open_arguments import OpenArguments
from kvemb.errors import BackendUnavailable, Closed
from kvemb.limits import Limits
from kvemb.masking import masked
from kvemb.progress import Progress
from kvemb.store_state import StoreState

_logger = logging.getLogger("kvemb")


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    number: int | None = None,
    shards: int | None = None,
    memory_budget: int | str = "1GiB",
    device_memory: int | str | None = None,
    gpus: float | None = None,
    scratch: str | os.PathLike[str] | None = None,
    transport: Literal["ray", "local"] = "ray",
    answer_seconds: float = ANSWER_SECONDS,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
) -> Store:
    """Open a cluster of shards in the state of a checkpoint at a url, by default the newest.

    Several threads of this process may use the store. Other processes use ``kvemb.cluster.connect``.

    Args:
        url: Where the cluster's checkpoints are: a directory, or a URL that fsspec supports. None: the cluster has no
            checkpoints, and its rows are lost when it is closed.
        number: The number of the checkpoint to open. None: the newest. Later checkpoints stay until ``keep=`` of a
            checkpoint deletes them, and the next one is numbered after them.
        shards: How many shards, from 1 to 4,096. None: as many as the checkpoint has. If the checkpoint has as many,
            its files are used; otherwise its rows are read and loaded again.
        memory_budget: Memory for everything that each shard keeps: bytes, or text such as ``"512MiB"``.
        device_memory: Memory of each shard for hot tables on a GPU, as for ``kvemb.open``.
        gpus: How many GPUs Ray gives to each shard, for variables with ``devices=["gpu"]``: a whole number, or less
            than 1. None: one if ``device_memory`` is given, otherwise none, and the shard sees no GPU.
        scratch: A directory for the shards' files, created if it is missing. Each shard has a folder there, deleted
            when the cluster is closed. On Ray it is on the shard's node. None: the system's temporary directory.
        transport: ``"ray"``: each shard is an actor of the Ray cluster to which ``ray.init()`` connected, or that
            ``RAY_ADDRESS`` names. The url must be reachable from the shards' nodes. ``"local"``: the shards are in this
            process.
        answer_seconds: Seconds that a shard may take for a call on rows before it counts as lost; at least 1. A shard
            whose process or disk hangs counts as lost after the same time, at most a minute.
        options: fsspec's options for the url's filesystem, a dict.
        progress: ``fn(done, total)``, called with rows loaded.
        limits: How much one internal step of a shard processes at a time (``kvemb.limits.Limits``).

    Returns:
        The store. Use it in a ``with`` block, which closes it, or call ``close()``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is not valid, or does not go with another one.
        CheckpointNotFound: There is no checkpoint ``number``.
        Locked: A cluster has this url open.
        FileExistsError: The url is a store, or has a single store's checkpoints.
        BackendUnavailable: Ray is missing, or has too few GPUs.
        ShardLost: A shard's process ends meanwhile.
        ColdStoreError: ``scratch`` cannot be written to.
        KvembError: What ``kvemb.CheckpointManager.pull`` and ``kvemb.restore`` raise.

    Example:
        >>> import kvemb.cluster
        >>> with kvemb.cluster.open("series", shards=2, transport="local") as cluster:
        ...     items = cluster.get_variable("items", dim=8)
        ...     items.upsert([1, 2, 3], np.ones((3, 8), np.float32))
        >>> with kvemb.cluster.open("series", transport="local") as cluster:
        ...     cluster.shards, cluster.variables["items"].size()
        (2, 3)
    """
    how: dict[str, Any] = {"memory_budget": memory_budget, "device_memory": device_memory, "limits": limits}
    OpenArguments(**how)  # checks them here, before a shard is made
    each = float(device_memory is not None) if gpus is None else as_float(gpus, "gpus", least=0, most=_MAX_GPUS)
    if each > 1 and each != int(each):
        raise ValueError(f"gpus must be a whole number or less than 1, got {brief(gpus)}")
    seconds = as_seconds(answer_seconds, "answer_seconds", least=MIN_ANSWER_SECONDS)
    _check_transport(transport)
    earlier = None if number is None else as_int(number, "number", 0, MAX_SERIES)
    if earlier is not None and url is None:
        raise ValueError(f"number={earlier} selects a checkpoint, so url is required")
    if options is not None and url is None:
        raise ValueError("options are for the filesystem of url, and url was not given; leave them out")
    if gpus is not None and transport != "ray":
        raise ValueError("gpus is for shards on Ray; leave it out with transport='local'")
    wanted = None if shards is None else as_int(shards, "shards", 1, BUCKETS)
    series = None if url is None else ClusterSeries(url, options)
    if series is not None and transport == "ray" and series.is_in_memory:
        raise ValueError(
            f"{masked(series.url)} is in this process's memory, which Ray's shards cannot reach; name another URL"
        )
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch")
    of_series = series.options if series else {}
    request = OpenRequest(series.url if series else None, of_series, wanted, how, each, seconds, number=earlier)
    if transport == "ray":
        place = None if scratch is None else str(root)
        way = ray_starting.start(request, place, progress)
        cluster = Cluster(way, masked(request.url or "on Ray"), shared=series is not None)
    else:
        with open_file_limit.told(f"open {masked(request.url or root)}"):
            coordinator = start(request, partial(make_in_process, root), progress)
        cluster = Cluster(DirectTransport(coordinator), masked(request.url or coordinator.place))
        if request.url is not None:
            _here[request.url] = coordinator
    if series is not None:
        finalize(cluster, _warn_if_open, cluster.state)
    return Store(cluster, series=series is not None, owner=True)


def connect(
    url: str | os.PathLike[str],
    *,
    transport: Literal["ray", "local"] = "ray",
    options: Mapping[str, Any] | None = None,
    wait_seconds: float = 60.0,
) -> Store:
    """Connect to the cluster that has a url open, as one more client: for example in each process of a DDP training.

    The cluster lasts until the process that opened it closes it. ``close()`` of this store ends only this client.

    ``get_variable`` finds the variables that other clients have made. What it refuses for an open variable it also
    refuses for one that another client has open, except other flags (``trainable``, ``checkpoint``, ``bp_v2``).
    Functions of two clients are compared by their names, and those of the client that opened the variable first are
    used.

    Args:
        url: As given to ``kvemb.cluster.open`` in another process, or in this one with ``transport="local"``.
        transport: As given to ``kvemb.cluster.open``.
        options: fsspec's options for the url's filesystem, a dict, as given to ``kvemb.cluster.open``.
        wait_seconds: Seconds to wait until a cluster has the url open.

    Returns:
        The store.

    Raises:
        BackendUnavailable: No cluster can be reached, or it has another version of kvemb.
        TypeError, ValueError: An argument is not valid.
    """
    _check_transport(transport)
    seconds = as_seconds(wait_seconds, "wait_seconds", least=0)
    where, deadline = ClusterSeries(url, options).url, time.monotonic() + seconds
    while True:
        found = ray_starting.find(where) if transport == "ray" else _found_here(where)
        with suppress(Closed):  # it was closed just now
            if found is not None:
                return Store(Cluster(found, masked(where), shared=transport == "ray"), series=True, owner=False)
        if time.monotonic() >= deadline:
            place = "this Ray cluster" if transport == "ray" else "this process"
            raise BackendUnavailable(
                f"no cluster has opened {masked(where)} in {place} within {seconds:g} seconds; open it with "
                "kvemb.cluster.open"
            )
        time.sleep(_TURN_SECONDS)


def _warn_if_open(state: StoreState) -> None:
    """Warn of a cluster that nothing refers to any more, or that is open as the program ends."""
    if not state.gone:
        _logger.warning(
            "the cluster %s was not closed: what changed after its last checkpoint is lost; call close(), or open it "
            "in a `with` block",
            state.name,
        )


# The coordinators of this process, by url.
_here: WeakValueDictionary[str, Coordinator] = WeakValueDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_here.clear)  # their threads exist in the parent only
_TURN_SECONDS = 0.1
MIN_ANSWER_SECONDS, _MAX_GPUS = 1.0, 1024


def _found_here(url: str) -> DirectTransport | None:
    found = _here.get(url)
    return None if found is None or found.closed else DirectTransport(found)


def _check_transport(transport: object) -> None:
    if transport not in ("ray", "local"):
        raise ValueError(f"transport must be 'ray' or 'local', got {brief(transport)}")
    if transport == "ray":
        ray_transport.ray_here()
