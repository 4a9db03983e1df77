"""Resumes training from the newest checkpoint of a series: opens the store as it was then; later changes are lost.

A store that is there is never deleted: its next durable point is the checkpoint. Until that point is complete, the
store is as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from kvemb import opening
from kvemb.durability import layout, manifest
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.installing import check_names, clear_left, discard, go_back, left_by_restore, restoring
from kvemb.durability.manifest import Manifest
from kvemb.engine.dropping import drop
from kvemb.engine.open_arguments import OpenArguments
from kvemb.handle import inside
from kvemb.options import format_count, format_time
from kvemb.store import Store

_logger = logging.getLogger("kvemb")


def resume(newest: Checkpoint | None, path: Path, how: OpenArguments, variables: Collection[str] | None) -> Store:
    """Return the store at path in the state of a checkpoint, None for a new one. See CheckpointManager.resume."""
    if newest is not None:
        check_names(newest.variables, variables, str(newest.path))
    if layout.is_store(path) and not (path / layout.POINTS).is_dir():
        with layout.lock(path):  # earlier versions deleted the store, and this one was killed then
            discard(path)
    if layout.is_store(path):
        return _emptied(path, how) if newest is None else _taken_back(newest, path, how, variables)
    if left_by_restore(path):
        with restoring(path):
            for point in filter(layout.is_checkpoint, (path / layout.POINTS).glob("[!.]*")):
                _check(path, manifest.read(point), newest)
            if newest is None:
                clear_left(path)
    if newest is None:
        return opening.open_at(path, how)
    return opening.restore(newest.path, path, how, variables)


def _taken_back(newest: Checkpoint, path: Path, how: OpenArguments, variables: Collection[str] | None) -> Store:
    with layout.lock(path):
        found = manifest.read(layout.current_point(path))
        _check(path, found, newest)
        go_back(newest.path, path, variables)
    if changed_since(found, newest.id):
        _logger.warning(
            "%s goes back to %s: later changes, up to %s, are deleted; to keep such changes, save a checkpoint after "
            "them",
            path,
            newest.path,
            format_time(found.created),
        )
    return opening.open_at(path, how)


def _emptied(path: Path, how: OpenArguments) -> Store:
    """Open a store without rows, and drop its variables, which may be made with other arguments now."""
    with layout.lock(path):
        _check(path, manifest.read(layout.current_point(path)), None)
    store = opening.open_at(path, how)
    engine = inside(store)
    try:
        _check(path, engine.current_manifest, None)  # its log may have had rows
        with engine.lock:
            drop(engine, engine.names())
    except BaseException:
        store.close(flush=False)
        raise
    return store


def _check(path: Path, found: Manifest, newest: Checkpoint | None) -> None:
    """Raise FileExistsError if the store at path may have rows that the series lacks, and so must be kept."""
    if newest is not None and found.store != inside(newest).store:
        raise FileExistsError(f"{path} is not the store from which {newest.path} was saved; name another path")
    rows = sum(entry.rows for entry in found.variables.values())
    if newest is None and rows:
        raise FileExistsError(
            f"{path} has {format_count(rows, 'row')} and the series has no checkpoint yet: open it with kvemb.open, "
            "or name another path"
        )


def changed_since(found: Manifest, checkpoint: str) -> bool:
    """Whether rows changed between a checkpoint of a store and a later durable point of it."""
    since = [epoch.since for epoch in found.changes]
    if checkpoint not in since:
        return found.id != checkpoint
    return any(epoch.variables for epoch in found.changes[since.index(checkpoint) :])
