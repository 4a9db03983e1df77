"""Compiled code on disk, in the user's cache directory, for CPUs and GPUs alike. Safe from any thread and process.

A file is a SHA-256 digest and the code. It is written under another name, then renamed; a damaged one counts as
absent. So a failure costs seconds but changes no result; the first failed write of a process is logged. Files of one
environment (versions, processor, sources) share a folder. A process that makes a folder removes all but the folders
used last.

Code is executed as it is read, so folders are made for their user alone. The cache is never in a package or a
checkout: pip would leave it there, and Python then takes the folder for the package.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

# Folders that stay, including the one just made. One has up to 40 MB.
KEPT_FOLDERS = 20

_DIGEST_BYTES = 32
_logger = logging.getLogger("kvemb")
# The reason of the first failure, once it was logged.
_warned: list[str] = []


def root() -> Path:
    """Return kvemb's folder in $NUMBA_CACHE_DIR if that is set, else in the user's cache directory.

    Raises OSError if the user has no home directory.
    """
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return _as_first_used(given) / "kvemb"
    return _of_user()


@cache
def _as_first_used(given: str) -> Path:
    """Return a path that may be relative, absolute: it stays the same folder when the working directory changes."""
    return Path(given).absolute()


@cache
def _of_user() -> Path:
    import platformdirs

    try:
        found = platformdirs.user_cache_path("kvemb", appauthor=False)
    except RuntimeError as error:
        raise OSError(f"the user has no home directory: {error}") from error
    if not found.is_absolute():  # ~/.cache, of older versions of platformdirs
        raise OSError(f"the user has no home directory: {found} is not an absolute path")
    return found


def read(environment: str, name: str) -> bytes | None:
    """Return the code that was kept for an environment under a name; None if there is none or it is damaged."""
    try:
        folder = root() / environment
        data = (folder / name).read_bytes()
        _mark_used(folder)
    except OSError:
        return None
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return code if digest == hashlib.sha256(code).digest() else None


def keep(environment: str, name: str, code: bytes) -> None:
    """Keep code, if possible."""
    draft = None
    try:
        folder = root() / environment
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_unused(folder.parent)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            draft = Path(file.name)
            file.write(hashlib.sha256(code).digest() + code)
        draft.replace(folder / name)
    except OSError as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        if not _warned:
            _warned.append(str(error))
            _logger.warning(
                "cannot write compiled kernels to disk, so each process compiles them again, which takes some seconds; "
                "set NUMBA_CACHE_DIR to a writable directory (%s)",
                error,
            )


@cache
def _mark_used(folder: Path) -> None:
    """Make a folder the last used one, once a process; one that cannot be written to keeps its time."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def _remove_unused(home: Path) -> None:
    """Remove all folders but the last used ones; a process that uses one of them compiles again."""
    folders = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(home) if entry.is_dir()]
    for _, path in sorted(folders)[:-KEPT_FOLDERS]:
        shutil.rmtree(path, ignore_errors=True)
