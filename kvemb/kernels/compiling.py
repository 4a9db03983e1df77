"""Compilation of kernels by numba, and their code on disk (kvemb.kernels.cache). Loading numba takes half a second.

Kernels access only their arguments, and release the GIL unless they read objects; callers hold the locks. numba's own
cache is not used: it lies beside the sources, and has one index of all signatures of a kernel, in which two processes
can mix up their code.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba import extending
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from kvemb.kernels import cache as disk
from kvemb.threads.interrupts import uninterrupted
from kvemb.version import VERSION

# No reference counts of arrays, and no entry for callers in C, which takes time to compile and which nothing calls.
_NO_MORE: Any = {"_nrt": False, "no_cfunc_wrapper": True}


def kernel(function: Any, source: bytes = b"", *, nogil: bool = True) -> Any:
    """Compile a kernel and cache it on disk, if possible. Division by zero is IEEE 754's.

    No fastmath, so that no multiply-add is fused: results must not depend on the machine. No reference counts either:
    arrays passed to inlined functions would be counted for every row, and an atomic operation waits for all earlier
    reads. So a kernel cannot make arrays. source: that of a generated function, which is in no file.
    """
    made = numba.njit(nogil=nogil, error_model="numpy", **_NO_MORE)(function)
    made._cache = _CodeOnDisk(function, source)
    compile_one = made.compile

    def compile_whole(signature: Any) -> Any:
        # Signal handlers wait while numba compiles or loads a kernel: it may hold locks that it would not release.
        with uninterrupted():
            return compile_one(signature)

    made.compile = compile_whole
    return made


def inlined(function: Any) -> Any:
    """Let kernels call a function, which LLVM inlines into each of them.

    numba's own inlining takes twice as long to compile, for the same code: it types each copy anew.
    """
    return extending.register_jitable(forceinline=True, **_NO_MORE)(function)


def inlined_by_types(stub: Any) -> Callable[[Any], Any]:
    """Let kernels call a stub. The decorated function gets the types of its arguments, and returns what is inlined."""
    options: Any = {"forceinline": True, **_NO_MORE}
    decorate: Callable[[Any], Any] = extending.overload(stub, jit_options=options)
    return decorate


def compiled(function: Any) -> Any:
    """Let kernels call a function; LLVM decides whether it is inlined."""
    return extending.register_jitable(**_NO_MORE)(function)


def intrinsic(function: Any) -> Any:
    """Do what numba's intrinsic does. Its types would have callers pass the first argument, typingctx, too."""
    return extending.intrinsic(function)


class _CodeOnDisk:
    """What numba asks of the cache of one kernel (Dispatcher._cache)."""

    def __init__(self, function: Any, source: bytes) -> None:
        self._name = f"{Path(function.__code__.co_filename).stem}.{function.__name__}"[:80]
        # A kernel contains functions of other files, too.
        self.sources = source_stamp(Path(function.__code__.co_filename).parent)
        self._own = hashlib.sha256(source).hexdigest()

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the kernel for a signature, None if it must be compiled.

        numba's own cache first imports all that numba can compile, with SciPy where it is installed, which takes a
        second. To run, a kernel needs none of that, since it makes no arrays.
        """
        code = disk.read(*self._place(signature, target))
        if code is None:
            return None
        try:
            return CompileResult._rebuild(target, *pickle.loads(code))
        except Exception:  # unpickling may raise anything; what is compiled now takes the place of this file
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compiled kernel."""
        disk.keep(*self._place(signature, result.target_context), dumps(result._reduce()))

    def _place(self, signature: Any, target: Any) -> tuple[str, str]:
        cpu = target.codegen().magic_tuple()  # its kind, its name and all of its features
        digest = hashlib.sha256(repr((cpu, self.sources)).encode()).hexdigest()[:16]
        environment = f"{VERSION}-numba-{numba.__version__}-{sys.implementation.cache_tag}-{cpu[1]}-{digest}"
        return environment, f"{self._name}-{hashlib.sha256(repr((signature, self._own)).encode()).hexdigest()[:32]}"


@cache
def source_stamp(folder: Path) -> str:
    """Return a digest of every source file that a kernel of this folder may contain."""
    folders = {folder, Path(__file__).parent, Path(__file__).parents[1] / "rows"}
    sources = sorted(path for each in folders for path in each.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
