"""Compiles kernels for a GPU with CUDA's run-time compiler, NVRTC, and keeps the results on disk.

CuPy's RawModule is not used, because it adds -ftz=true after all options: subnormal floats would count as 0, so results
would not have the CPU's bits.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kvemb.backends.cuda.source import OPTIONS
from kvemb.kernels import cache
from kvemb.version import VERSION


def binary_of(nvrtc: Any, source: str, architecture: str) -> bytes:
    """Return a program for GPUs of an architecture such as "90", from disk if it was compiled before.

    nvrtc: cupy.cuda.nvrtc. Raises RuntimeError with the compiler's messages.
    """
    options = (*OPTIONS, f"--gpu-architecture=sm_{architecture}")
    environment = f"{VERSION}-nvrtc-{'.'.join(map(str, nvrtc.getVersion()))}-sm_{architecture}"
    name = hashlib.sha256(repr((source, options)).encode()).hexdigest()
    if (kept := cache.read(environment, name)) is not None:
        return kept
    binary = _compiled(nvrtc, source, options)
    cache.keep(environment, name, binary)
    return binary


def _compiled(nvrtc: Any, source: str, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(source, "kvemb.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise RuntimeError(f"{error}: {nvrtc.getProgramLog(program)}") from error
        return bytes(nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)
