"""What a crash left in a series: checkpoints that were being written or deleted.

A save gives its checkpoint the name last, after the store's durable point (kvemb.durability.point_writer). If the store
follows a checkpoint that lacks only its name, the checkpoint is complete. Stateless; REQUIRES: the series' lock.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from kvemb.durability import fresh_files, inventory, layout, manifest
from kvemb.errors import Corruption, UnsupportedFormat


def clear(root: Path, followed: Collection[str]) -> None:
    """Delete what a crash left, except for a complete checkpoint with one of these ids, which gets its name."""
    for path in root.iterdir():
        if (left := layout.left_in_series(path.name)) is None:
            continue
        number, deleting = left
        if not deleting and _is_complete(path, followed):
            with layout.as_cold_store_error(f"rename {path}"):
                os.rename(path, root / layout.series_name(number))
                fresh_files.sync_directory(root)
        else:
            with layout.as_cold_store_error(f"delete {path}"):
                fresh_files.remove(path)


def of_saves(root: Path) -> bool:
    """Whether there is anything that a save left. Needs no lock."""
    return any(not left[1] for path in root.glob(".*") if (left := layout.left_in_series(path.name)) is not None)


def followed_by(store: Path) -> set[str]:
    """The ids of the checkpoints that the store at a path follows; of none if there is no store. Raises Locked."""
    if not layout.is_store(store) or not (store / layout.POINTS).is_dir():
        return set()
    with layout.lock(store):
        return {epoch.since for epoch in manifest.read(layout.current_point(store)).changes}


def _is_complete(path: Path, followed: Collection[str]) -> bool:
    if not layout.is_checkpoint(path):
        return False
    try:
        described = manifest.read(path)
        if described.id not in followed:
            return False
        inventory.check(path, described)
    except (Corruption, UnsupportedFormat):
        return False
    return True
