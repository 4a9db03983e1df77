"""PyTorch's OpenMP threads, for kernels that run beside its own.

After each parallel operation they spin for up to some milliseconds, on the cores that other threads then wait for. So
kernels of one call run as a parallel region of the same libgomp, the one in PyTorch's wheels for Linux.

Each thread that begins regions has a team of its own in libgomp. So only the main thread does, and there is never more
than the team that PyTorch made for it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

_forked = False


class _Library(NamedTuple):
    """A loaded libgomp: the address of GOMP_parallel, and two of its functions, which do not release the GIL."""

    parallel: int
    functions: ctypes.PyDLL


def team() -> int:
    """Return the address of PyTorch's GOMP_parallel, or 0 if this call uses threads of its own.

    It does so if PyTorch is not loaded or uses another OpenMP, on all but the main thread, inside a parallel region,
    with one OpenMP thread (torch.set_num_threads(1)), and in a forked process, where the team's threads do not exist.
    """
    torch = sys.modules.get("torch")
    if torch is None or _forked or threading.get_ident() != threading.main_thread().ident:
        return 0
    if not hasattr(torch, "get_num_threads"):  # it is being imported
        return 0
    library = _library(torch.__file__)
    if library is None or library.functions.omp_in_parallel() or library.functions.omp_get_max_threads() < 2:
        return 0
    return library.parallel


@cache
def _library(torch: str) -> _Library | None:
    """Return the libgomp in PyTorch's package, if PyTorch's calls reach it. torch: the path of its __init__.py."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    for path in sorted((Path(torch).parent / "lib").glob("libgomp*.so*")):
        try:
            functions = ctypes.PyDLL(str(path), os.RTLD_NOLOAD | os.RTLD_NOW)
            parallel = _address(functions)
            # Another library that was loaded for all, as Intel's can be, has taken its place.
            if parallel == _address(ctypes.PyDLL(None)):
                return _Library(parallel, functions)
        except (OSError, AttributeError):  # it is not loaded, or has no such function
            continue
    return None


def _address(library: ctypes.PyDLL) -> int:
    return ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value or 0


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
