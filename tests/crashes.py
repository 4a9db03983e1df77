"""What a crash leaves of a store that is open."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def copy_of_open(store: Path, target: Path) -> Path:
    """Copy an open store's directory to target, a new one; returns target."""
    shutil.copytree(store, target, copy_function=_copy_if_there)
    return target


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file; RocksDB deletes some of its own meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)
