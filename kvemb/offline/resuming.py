"""Training that goes on from the newest checkpoint of a series: the store as it was then, whatever came after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kvemb import opening
from kvemb.durability import fresh_files, layout, manifest
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.manifest import Manifest
from kvemb.handle import inside
from kvemb.store import Store


def resume(newest: Checkpoint | None, path: Path, **arguments: Any) -> tuple[Store, Checkpoint | None]:
    """Return the store at path in the state of a checkpoint, None for a new one. See CheckpointManager.resume."""
    if layout.is_store(path):
        with layout.lock(path):
            if (path / layout.POINTS).is_dir():
                _check(path, manifest.read(layout.current_point(path)), newest)
            with layout.as_cold_store_error(f"delete {path}"):
                _delete(path)
    if newest is None:
        arguments.pop("warm", None)
        return opening.open(path, **arguments), None
    return opening.restore(newest.path, path, **{"warm": True, **arguments}), newest


def _delete(store: Path) -> None:
    """Delete what is in a store. If a crash interrupts it, calling it again completes it."""
    fresh_files.remove(store / layout.LIVE)
    if (store / layout.POINTS).is_dir():
        os.rename(store / layout.POINTS, store / layout.LIVE)
    for entry in sorted(store.iterdir(), key=lambda entry: entry.name == layout.CURRENT):
        fresh_files.remove(entry)


def _check(path: Path, found: Manifest, newest: Checkpoint | None) -> None:
    """Raise FileExistsError if the store at path may hold what the series does not: it is not to be deleted."""
    if newest is not None and found.store != inside(newest).store:
        raise FileExistsError(
            f"{path} is another store than the one that {newest.path} was saved of; name another path"
        )
    rows = sum(entry.rows for entry in found.variables.values())
    if newest is None and rows:
        raise FileExistsError(
            f"{path} has {rows:,} rows and the series has no checkpoint yet: open it with kvemb.open, or delete it"
        )
