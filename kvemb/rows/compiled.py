"""The cache of compiled kernels on disk; if there is no writable directory, every process compiles them.

numba keeps them next to the source or in the user's cache directory, and refuses to compile if it can write to neither,
as in some containers. A failure of the cache costs seconds but changes no result; the first failure of a process is
logged.

numba has one index of all signatures of a kernel. A process reads it, adds its own signature and writes it. If two
processes do so at the same time, one signature is lost, or the index names the code of the other one, which would then
be executed. So here each signature has an index of its own (_KernelFiles).
"""

from __future__ import annotations

import glob
import hashlib
import logging
from pathlib import Path
from typing import Any

import numba

from kvemb.threads.interrupts import uninterrupted

_logger = logging.getLogger("kvemb")
# The reason of the first failure, once it was logged.
_warned: list[str] = []


def compiled(function: Any, stamp: str, **options: Any) -> Any:
    """Compile a function and cache it under a stamp of its sources; if the stamp differs, compile it again."""
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        _warn_once(str(error))
        return _whole(numba.njit(**options)(function))
    numbas, name = made._cache._cache_file, made._cache._impl.filename_base
    made._cache._cache_file = _KernelFiles(type(numbas), made._cache.cache_path, name, stamp)
    made._cache = _TolerantCache(made._cache)
    return _whole(made)


def _whole(made: Any) -> Any:
    """Have Ctrl-C wait while numba compiles or loads a kernel: it may hold locks that it would not release."""
    compile_one = made.compile

    def compile_whole(signature: Any) -> Any:
        with uninterrupted():
            return compile_one(signature)

    made.compile = compile_whole
    return made


class _KernelFiles:
    """The files of one kernel in a folder, used by numba as its IndexDataCacheFile.

    kind: numba's class of that name. name: the kernel's. stamp: of the sources; both are parts of the files' names.
    """

    def __init__(self, kind: Any, folder: str, name: str, stamp: str) -> None:
        self.stamp, self._kind, self._folder = stamp, kind, folder
        self._all = f"{name}."
        self._current = f"{name}.{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"

    def load(self, key: Any) -> Any:
        """Return what was saved for a signature, None if nothing was."""
        return self._of(key).load(key)

    def save(self, key: Any, data: Any) -> None:
        """Save a signature's code, and delete that of other sources."""
        self._of(key).save(key, data)
        for path in Path(self._folder).glob(glob.escape(self._all) + "*"):
            if not path.name.startswith(self._current):
                path.unlink(missing_ok=True)

    def _of(self, key: Any) -> Any:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
        return self._kind(self._folder, f"{self._current}.{digest}", self.stamp)


class _TolerantCache:
    """numba's cache of one kernel: if reading fails, the kernel is compiled; if writing fails, it is not cached."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def load_overload(self, *arguments: Any) -> Any:
        """Return the cached kernel, None if there is none or it cannot be read."""
        try:
            return self._kept.load_overload(*arguments)
        except Exception as error:  # a torn file may raise anything
            _warn_once(f"{self._kept.cache_path}: {error!r}")
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Cache a kernel, if possible."""
        try:
            self._kept.save_overload(*arguments)
        except (OSError, EOFError) as error:
            _warn_once(f"{self._kept.cache_path}: {error!r}")


def _warn_once(why: str) -> None:
    if not _warned:
        _warned.append(why)
        _logger.warning(
            "compiled code is not kept on disk, so each process compiles for some seconds at the first call of each "
            "kind; set NUMBA_CACHE_DIR to a directory that can be written to (%s)",
            why,
        )
