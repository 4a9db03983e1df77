"""Durable writing and deleting of files and directories by name, never through an existing link.

An existing file may be a symbolic link, or have other hard links, of a checkpoint or outside kvemb. Only the name is
removed; the file that it leads to does not change. Stateless.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from kvemb.hard_links import linked


def write_new(path: Path, data: bytes) -> None:
    """Write a new file, replacing any file of that name, and wait until it is on disk. Raises OSError."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes, temporary: Path) -> None:
    """Give a file this content, whole and durable, or leave it as it is.

    Raises OSError; then no temporary file is left. If only the last sync fails, the file may be the new one.
    """
    try:
        write_new(temporary, data)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Delete a file, a symbolic link or a directory, if it exists. Raises OSError, but not for a directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Wait until the directory's entries are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, if missing, each durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
    # An existing directory may have been created by a process that crashed before this sync. Its parents were synced
    # before it was created.
    with suppress(PermissionError):
        sync_directory(path.parent)


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Make target, a new name, a hard link to source, or a copy if links are impossible.

    If source is a symbolic link, the file that it leads to is linked: the symbolic link itself might be relative, or
    lead out of the store. Raises FileExistsError, OSError.
    """
    if not linked(os.path.realpath(source) if os.path.islink(source) else source, target):
        shutil.copyfile(source, target)


def sync_tree(path: Path) -> None:
    """Wait until every folder below path, and path itself, has its entries on disk. Files sync themselves."""
    for folder, _, _ in os.walk(path, topdown=False):
        sync_directory(Path(folder))
