"""Copies an open store as a crash would leave it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def copy_of_open(store: Path, target: Path) -> Path:
    """Copy an open store's directory to target, a new one; returns target."""
    shutil.copytree(store, target, copy_function=_copy_if_there)
    return target


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless RocksDB has deleted it meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)
