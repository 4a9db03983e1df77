"""Restores a checkpoint, wherever it is (kvemb.offline.places), to a new store."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from kvemb import fresh_files, opening
from kvemb.durability import layout, paths
from kvemb.durability.installing import check_is_new, check_names
from kvemb.durability.marks.kept import KEEP_MARKS
from kvemb.engine.open_arguments import OpenArguments, as_names
from kvemb.limits import Limits
from kvemb.masking import masked
from kvemb.offline.places import Place
from kvemb.progress import Progress
from kvemb.shared_docs import described_as
from kvemb.store import Store

_logger = logging.getLogger("kvemb")


@described_as(opening.open)
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
    keep_marks: int = KEEP_MARKS,
) -> Store:
    """Make a new store at a path from a checkpoint, and open it. The checkpoint never changes.

    On one filesystem the store's files are hard links to those of the checkpoint; across two they are copies. A
    checkpoint at a URL, or of a cluster, is first pulled to a temporary folder next to ``path``. The rows of all shards
    are then merged in key order, in memory that does not grow with the table. Devices may differ from those of the
    store that was saved.

    The arguments that ``kvemb.open`` has, too, are those of the new store.

    Args:
        checkpoint: A checkpoint; ``SERIES/00000042``; or a series, whose newest checkpoint is taken, and named by the
            logger "kvemb". A series may be local, at a URL, or of a cluster.
        path: The new store's directory, which must be missing or empty.
        variables: Names of the variables to take. None: all.
        warm: When a variable is opened, load the rows that were hot when the checkpoint was made. With False, rows
            become hot when they are used.
        options: fsspec's options for the filesystem of a URL, a dict.
        progress: ``fn(done, total)``, called with bytes transferred; then, for a cluster, with rows.

    Returns:
        The open store.

    Raises:
        CheckpointNotFound: There is no such checkpoint.
        FileExistsError: ``path`` is not empty, and what it has was not left by a killed call of ``restore``.
        KeyError: The checkpoint has no variable of a name in ``variables``.
        TransferError: The URL could not be read.
        Corruption: Bytes on disk, or at the URL, differ from what was written.
        UnsupportedFormat: The checkpoint was written by a kvemb with another format.
        ColdStoreError: The disk could not be read or written.
        Locked: Another process is restoring to ``path``.
        ValueError, TypeError: An argument is not valid; or ``path`` is inside another store.
        BackendUnavailable: A package that the URL needs is missing; or this process was forked after a store had been
            opened.

    Example:
        >>> saved = store.checkpoint("backup")
        >>> with kvemb.restore("backup", "restored") as restored:
        ...     restored.variables["users"].size()
        3
    """
    how = OpenArguments(
        memory_budget=memory_budget,
        device_memory=device_memory,
        warm=warm,
        durability=durability,
        flush_every=flush_every,
        limits=limits,
        keep_marks=keep_marks,
    )
    names, target = as_names(variables), paths.local(path)
    place = Place(checkpoint, options, what="checkpoint")
    if place.newest:
        _logger.info("restoring %s, the newest checkpoint of %s", masked(place.name), masked(checkpoint))
    if place.here is not None:
        return opening.restore(place.here, target, how, names)
    check_is_new(target)
    check_names(place.described().variables, names, f"the checkpoint at {masked(place.name)}")
    with ExitStack() as stack:
        with layout.as_cold_store_error(f"write to {target.parent}"):
            fresh_files.make_directory(target.parent)
            source = stack.enter_context(place.readable(within=target.parent, progress=progress))
        return opening.restore(source, target, how, names)
