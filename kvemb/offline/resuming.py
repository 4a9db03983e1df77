"""Resumes training from the newest checkpoint of a series: opens the store as it was then; later changes are lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from kvemb import opening
from kvemb.durability import fresh_files, layout, manifest
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.installing import left_by_restore, restoring
from kvemb.durability.manifest import Manifest
from kvemb.durability.points import delete_store
from kvemb.handle import inside
from kvemb.options import format_count, format_time
from kvemb.store import Store

_logger = logging.getLogger("kvemb")


def resume(newest: Checkpoint | None, path: Path, **arguments: Any) -> tuple[Store, Checkpoint | None]:
    """Return the store at path in the state of a checkpoint, None for a new one. See CheckpointManager.resume."""
    if arguments.get("flush_every") is not None:
        raise ValueError("flush_every has no effect with resume, which goes back to a checkpoint; call save_if_due")
    if layout.is_store(path):
        with layout.lock(path):
            if (path / layout.POINTS).is_dir():
                _check(path, manifest.read(layout.current_point(path)), newest)
            with layout.as_cold_store_error(f"delete {path}"):
                delete_store(path)
    elif left_by_restore(path):
        with restoring(path):
            for point in filter(layout.is_checkpoint, (path / layout.POINTS).glob("[!.]*")):
                _check(path, manifest.read(point), newest)
            with layout.as_cold_store_error(f"delete {path}"):
                for entry in list(path.iterdir()):
                    fresh_files.remove(entry)
    if newest is None:
        arguments.pop("warm", None)
        return opening.open(path, **arguments), None
    return opening.restore(newest.path, path, **{"warm": True, **arguments}), newest


def _check(path: Path, found: Manifest, newest: Checkpoint | None) -> None:
    """Raise FileExistsError if the store at path may have data that the series lacks, and so must not be deleted."""
    if newest is not None and found.store != inside(newest).store:
        raise FileExistsError(f"{path} is not the store from which {newest.path} was saved; name another path")
    rows = sum(entry.rows for entry in found.variables.values())
    if newest is not None and changed_since(found, newest.id):
        made = format_time(found.created)
        _logger.warning(
            "%s goes back to %s: later changes, up to %s, are deleted; to keep such changes, save a checkpoint after "
            "them",
            path,
            newest.path,
            made,
        )
    if newest is None and rows:
        raise FileExistsError(
            f"{path} has {format_count(rows, 'row')} and the series has no checkpoint yet: open it with kvemb.open, "
            "or delete it"
        )


def changed_since(found: Manifest, checkpoint: str) -> bool:
    """Whether rows changed between a checkpoint of a store and a later durable point of it."""
    since = [epoch.since for epoch in found.changes]
    if checkpoint not in since:
        return found.id != checkpoint
    return any(epoch.variables for epoch in found.changes[since.index(checkpoint) :])
