"""Folders for the files of shards. A shard deletes its folder when it ends; new_folder() deletes those of killed
processes.

Each folder has a LOCK, held by the process that made it. If the lock is free, that process was killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from kvemb.durability import fresh_files, layout
from kvemb.durability.lock_file import LockFile
from kvemb.errors import Corruption, Locked

# The owner of a younger folder may not have locked it yet.
SETTLED_SECONDS = 60.0


def new_folder(root: Path, prefix: str) -> tuple[Path, LockFile]:
    """Make and lock a folder in root whose name begins with prefix; deletes abandoned ones there.

    Raises ColdStoreError.
    """
    with layout.as_cold_store_error(f"write to {root}"):
        fresh_files.make_directory(root)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        lock = layout.lock(folder)
        for left in root.glob(f"{prefix}*"):
            _delete_if_left(left, folder.stat().st_mtime)
        return folder, lock


def _delete_if_left(folder: Path, now: float) -> None:
    """Delete a folder whose owner has ended. Leaves folders of other users, and anything that is not such a folder.

    now: the time of the filesystem's clock, which may differ from this machine's.
    """
    with suppress(OSError, Corruption, Locked):
        if now - (folder / layout.LOCK).stat().st_mtime > SETTLED_SECONDS:
            with closing(layout.lock(folder)):
                shutil.rmtree(folder, ignore_errors=True)


def probe(folder: Path) -> None:
    """Write to the disk of a folder. Returns once it has answered, also with an error; hangs while it does."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")
        file.flush()
        os.fsync(file.fileno())


def delete(folder: Path, lock: LockFile) -> None:
    """Delete a folder that new_folder() made."""
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
