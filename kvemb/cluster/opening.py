"""Opens a cluster. See kvemb.cluster.store."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

from kvemb import opening
from kvemb.checks.numeric import as_int
from kvemb.cluster.cluster import Cluster
from kvemb.cluster.local import LocalTransport
from kvemb.cluster.router import BUCKETS
from kvemb.cluster.shard import Shard
from kvemb.cluster.store import Store
from kvemb.durability import fresh_files, layout, paths
from kvemb.limits import Limits
from kvemb.options import parse_budget


def open(
    *,
    shards: int,
    memory_budget: int | str = "1GiB",
    scratch: str | os.PathLike[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
) -> Store:
    """Open an empty cluster of shards in this process, whose rows are gone when it is closed.

    shards: how many, from 1 to 4,096. memory_budget: of each shard, bytes or text such as "512MiB".
    scratch: a directory for the shards' files, in a folder of their own that is deleted with the cluster; it is made if
    it is missing. None: the system's temporary directory. limits: of each shard's store (kvemb.limits).
    Raises TypeError or ValueError for arguments; ColdStoreError if scratch cannot be written to.
    """
    count = as_int(shards, "shards", 1, BUCKETS)
    parse_budget(memory_budget)
    root = Path(tempfile.gettempdir()) if scratch is None else paths.local(scratch, "scratch").absolute()
    with layout.as_cold_store_error(f"write to {root}"):
        fresh_files.make_directory(root)
        folder = Path(tempfile.mkdtemp(prefix="kvemb-cluster-", dir=root))

    def made(number: int) -> Shard:
        place = folder / f"shard-{number:04d}"
        store = opening.open(place, memory_budget=memory_budget, limits=limits)
        return Shard(store, partial(shutil.rmtree, place, ignore_errors=True))

    try:
        transport = LocalTransport(made, count)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Store(Cluster(transport, str(folder), partial(shutil.rmtree, folder, ignore_errors=True)))
