"""Restores a checkpoint, wherever it is (kvemb.offline.places), to a new store."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from kvemb import opening
from kvemb.durability import fresh_files, layout, paths
from kvemb.engine.periodic_flush import as_flush_every
from kvemb.limits import Limits
from kvemb.offline.places import Place
from kvemb.options import parse_budget, parse_device_memory
from kvemb.progress import Progress
from kvemb.store import Store

_logger = logging.getLogger("kvemb")


def restore(
    checkpoint: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    memory_budget: int | str = "1GiB",
    device_memory: int | str | None = None,
    variables: Collection[str] | None = None,
    warm: bool = False,
    durability: Literal["checkpoint", "write"] = "checkpoint",
    flush_every: float | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    limits: Limits = Limits(),  # noqa: B008 -- a frozen value
) -> Store:
    """Make a new store at path from a checkpoint, and open it. The checkpoint never changes.

    checkpoint: a checkpoint; SERIES/00000042; or a series, local, at a URL or of a cluster, whose newest checkpoint is
    taken and named by the logger "kvemb". variables: take only these. warm: load the rows that were hot when the
    checkpoint was made, for each variable when it is opened; otherwise rows become hot when they are used. Devices may
    differ. memory_budget, device_memory, durability, flush_every, limits: as for kvemb.open. options: a URL's.
    progress(done, total): called with bytes transferred; then, for a cluster, with rows.

    Makes hard links on one filesystem, copies across two. A checkpoint at a URL or of a cluster is first pulled to a
    temporary folder next to path; the rows of all shards are then merged in key order, in memory that does not grow
    with the table. Raises CheckpointNotFound, FileExistsError, KeyError for a name, TransferError, and what open does.
    """
    parse_budget(memory_budget)
    parse_device_memory(device_memory)
    as_flush_every(flush_every)
    target = paths.local(path)
    place = Place(checkpoint, options, what="checkpoint")
    if place.newest:
        _logger.info("restoring %s, the newest checkpoint of %s", place.name, checkpoint)
    how: dict[str, Any] = {"memory_budget": memory_budget, "device_memory": device_memory, "variables": variables}
    how |= {"warm": warm, "durability": durability, "flush_every": flush_every, "limits": limits}
    if place.here is not None:
        return opening.restore(place.here, target, **how)
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists and is not empty; name a new directory to restore to")
    layout.check_outside_stores(target, "new store")
    known = place.described().variables
    if unknown := sorted(set(variables or ()) - set(known)):
        they = ", ".join(sorted(known))
        raise KeyError(f"the checkpoint at {place.name} has no variable {unknown[0]!r}; it has {they}")
    with ExitStack() as stack:
        with layout.as_cold_store_error(f"write to {target.parent}"):
            fresh_files.make_directory(target.parent)
            source = stack.enter_context(place.readable(within=target.parent, progress=progress))
        return opening.restore(source, target, **how)
