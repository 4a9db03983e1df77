"""Folders for the files of shards, which are deleted with them, or else by the next cluster that has its files there.

Each folder has a LOCK, held by the process that made it: one whose lock is free was left by a process that was killed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

from kvemb.durability import fresh_files, layout
from kvemb.durability.lock_file import LockFile
from kvemb.errors import Corruption, Locked

# A folder that is younger may be about to be locked.
SETTLED_SECONDS = 60.0


def new_folder(root: Path, prefix: str) -> tuple[Path, LockFile]:
    """Make a folder in root, whose name begins with prefix, and lock it; deletes those that were left there.

    Raises ColdStoreError.
    """
    with layout.as_cold_store_error(f"write to {root}"):
        fresh_files.make_directory(root)
        for left in root.glob(f"{prefix}*"):
            _delete_if_left(left)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        return folder, layout.lock(folder)


def _delete_if_left(folder: Path) -> None:
    """Delete a folder whose owner has ended; another user's, or one that is none, stays."""
    with suppress(OSError, Corruption, Locked):
        if time.time() - (folder / layout.LOCK).stat().st_mtime > SETTLED_SECONDS:
            with closing(layout.lock(folder)):
                shutil.rmtree(folder, ignore_errors=True)


def delete(folder: Path, lock: LockFile) -> None:
    """Delete a folder that new_folder() made."""
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
