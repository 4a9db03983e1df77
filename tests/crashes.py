"""Copies an open store as a crash would leave it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def copy_of_open(store: Path, target: Path) -> Path:
    """Copy an open store's directory to target, a new one; returns target."""
    try:
        shutil.copytree(store, target, copy_function=_copy_if_there)
    except shutil.Error as error:  # raised after everything else was copied
        gone = all("[Errno 2]" in why for _, _, why in error.args[0])
        if not gone:  # else a folder was renamed or deleted meanwhile, such as the draft of a point
            raise
    return target


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless RocksDB has deleted it meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)
