"""Temporary directories that are deleted even if their process was killed.

A directory is locked (flock) while its process lives. Creating one deletes those of the same prefix that are unlocked,
at least a minute older and owned by the same user. Ages are by the filesystem's clock, which may differ from this
machine's. On a filesystem without such locks none is deleted. Thread-safe and process-safe.
"""

from __future__ import annotations

import fcntl
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
            lock = os.open(folder, os.O_RDONLY)
            _locked(lock)
        _delete_abandoned(parent, prefix, os.fstat(lock).st_mtime)
        yield folder
    finally:
        with uninterrupted():  # Ctrl-C while files are being deleted would leave the others
            if folder is not None and process == os.getpid():
                shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or the filesystem has no locks
        return False
    return True


def _delete_abandoned(parent: Path, prefix: str, now: float) -> None:
    """Delete directories of this prefix whose processes have ended. Errors are ignored. now: the filesystem's time."""
    pattern = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")  # as tempfile names them
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            with suppress(OSError):
                if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                    _delete_stale(entry, now)


def _delete_stale(entry: os.DirEntry[str], now: float) -> None:
    status = entry.stat(follow_symlinks=False)
    if status.st_uid != os.getuid() or now - status.st_mtime < GRACE_SECONDS:
        return
    folder = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if _locked(folder):
            shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(folder)
