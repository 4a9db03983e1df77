"""Temporary folders that do not outlive their process, even one that was killed.

A folder is locked (flock) for as long as its process lives. Whoever makes another one of the same prefix first deletes
those that are unlocked, a minute old and its own user's. Where the filesystem has no such locks, nothing is deleted.
Any thread, any process.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A folder may be this old before its process has locked it.
GRACE_SECONDS = 60.0


@contextmanager
def scratch(prefix: str, within: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Yield a new folder, and delete it with all that is in it when the block ends.

    prefix: of its name, used for nothing else there. within: where; None: where temporary files go. Raises OSError.
    """
    place = Path(tempfile.gettempdir() if within is None else within)
    _sweep(place, prefix)
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    lock = os.open(made, os.O_RDONLY)
    try:
        _locked(lock)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody has it, or the filesystem knows no locks
        return False
    return True


def _sweep(place: Path, prefix: str) -> None:
    """Delete folders of this prefix whose processes are gone. What cannot be deleted stays."""
    ours = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")  # as tempfile names them
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with suppress(OSError):
                if ours.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    _delete_stale(entry)


def _delete_stale(entry: os.DirEntry[str]) -> None:
    about = entry.stat(follow_symlinks=False)
    if about.st_uid != os.getuid() or time.time() - about.st_mtime < GRACE_SECONDS:
        return
    folder = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if _locked(folder):
            shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(folder)
