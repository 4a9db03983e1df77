"""Temporary directories that are deleted even if their process was killed.

A directory is locked (flock) while its process lives. Creating one deletes those of the same prefix that are unlocked,
at least a minute older and owned by the same user. Ages are by the filesystem's clock, which may differ from this
machine's. On a filesystem without such locks none is deleted. Thread-safe and process-safe.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvemb.threads.interrupts import uninterrupted

# A process locks its directory within this time after creating it.
GRACE_SECONDS = 60.0


@contextmanager
def scratch(prefix: str, within: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Make a temporary directory, which is deleted with its content when the ``with`` block ends, also by Ctrl-C.

    If the process is killed, a later call deletes the directory. A process that is forked inside the block does not
    delete it.

    Args:
        prefix: The beginning of its name, reserved for such directories: abandoned ones of the same prefix are deleted.
        within: The parent of the directory. None: the system's temporary directory.

    Yields:
        The new directory.

    Raises:
        OSError: The directory could not be made.
    """
    parent = Path(tempfile.gettempdir() if within is None else within).absolute()
    folder, lock, process = None, None, os.getpid()
    try:
        with uninterrupted():
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            lock = hold(folder)
        pattern = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")  # as tempfile names them
        delete_abandoned(parent, pattern, before=os.fstat(lock).st_mtime - GRACE_SECONDS)
        yield folder
    finally:
        with uninterrupted():  # a handler that raises would leave the other files
            if folder is not None and process == os.getpid():
                shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def hold(folder: Path) -> int:
    """Mark a directory as one that this process writes; returns what marks it until os.close(). Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    _locked(handle)
    return handle


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or the filesystem has no locks
        return False
    return True


def delete_abandoned(parent: Path, pattern: re.Pattern[str], *, before: float = math.inf) -> None:
    """Delete the directories of such names that no process holds. Errors are ignored.

    before: only those that were last changed before this time, by the filesystem's clock.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):
                if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    _delete_unless_held(entry, before)


def _delete_unless_held(entry: os.DirEntry[str], before: float) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or status.st_mtime > before:
        return
    folder = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if _locked(folder):
            shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(folder)
