"""Checkpoints: directories that appear whole or not at all, and restoring from them.

A checkpoint costs hard links, not copies, while it stays on the store's filesystem.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kvemb import layout, manifest
from kvemb.contracts import ColdDatabase
from kvemb.errors import CheckpointNotFound, ColdStoreError, KvembError
from kvemb.manifest import Manifest


def write_checkpoint(database: ColdDatabase, described: Manifest, target: Path, leave_out: list[str]) -> None:
    """Write the database as it is to target, which must not exist; it appears under its name last.

    leave_out: variables whose rows must not be in it. Raises FileExistsError or ColdStoreError; then target is not
    there.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists; name a new directory for the checkpoint")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        database.checkpoint(temporary / layout.ROWS, leave_out)
        manifest.write(described, temporary)
        layout.sync_directory(temporary)
        os.rename(temporary, target)
        layout.sync_directory(target.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, KvembError):
            raise ColdStoreError(f"cannot write the checkpoint {target}: {error}") from error
        raise


def install(checkpoint: Path, store: Path) -> None:
    """Make a new store directory whose durable point is the checkpoint. Neither ever changes the other.

    Raises CheckpointNotFound, FileExistsError or ColdStoreError; then there is no store.
    """
    if not layout.is_checkpoint(checkpoint):
        raise CheckpointNotFound(f"there is no checkpoint at {checkpoint}")
    described = manifest.read(checkpoint)
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise FileExistsError(f"{store} exists and is not empty; name a new directory to restore to")
    point = store / layout.POINTS / point_name(described.point)
    try:
        layout.link_rows(checkpoint / layout.ROWS, point / layout.ROWS)
        manifest.write(described, point)
        layout.sync_directory(point)
        layout.set_current(store, point.name)
    except BaseException as error:
        shutil.rmtree(store, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, KvembError):
            raise ColdStoreError(f"cannot restore {checkpoint} to {store}: {error}") from error
        raise


def point_name(number: int) -> str:
    """The folder of a durable point."""
    return f"{number:06d}"
