"""What a crash left in a series: checkpoints that were being written or deleted.

A save gives its checkpoint the name last, after the store's durable point (kvemb.durability.point_writer). If the store
follows a checkpoint that lacks only its name, the checkpoint is complete. Stateless.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kvemb import fresh_files
from kvemb.durability import inventory, layout, manifest
from kvemb.errors import Corruption, Locked, UnsupportedFormat


def clear(root: Path) -> None:
    """Delete what a crash left. REQUIRES: the series' lock."""
    for path in root.iterdir():
        if layout.left_in_series(path.name) is not None:
            with layout.as_cold_store_error(f"delete {path}"):
                fresh_files.remove(path)


def complete(root: Path, store: Path) -> None:
    """Give their names to complete checkpoints that lack only these, if the store follows them. Deletes nothing.

    Does nothing while another process writes to the series. Raises Locked if the store is open.
    """
    if not (left := _of_saves(root)) or not (followed := _followed_by(store)):
        return
    if not any(_is_complete(path, followed) for path in left):
        return
    with suppress(Locked), layout.as_cold_store_error(f"write to {root}"), layout.lock(root):
        for path, number in _of_saves(root).items():
            named = root / layout.series_name(number)
            if not named.exists() and _is_complete(path, followed):
                os.rename(path, named)
        fresh_files.sync_directory(root)


def _of_saves(root: Path) -> dict[Path, int]:
    """What saves left, and the number of each."""
    left = {path: layout.left_in_series(path.name) for path in root.glob(".*")}
    return {path: found[0] for path, found in left.items() if found is not None and not found[1]}


def _followed_by(store: Path) -> set[str]:
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
