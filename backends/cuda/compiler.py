"""Compiles kernels for a GPU with CUDA's run-time compiler, NVRTC, and keeps the results on disk.

CuPy's RawModule is not used, because it adds -ftz=true after all options: subnormal floats would count as 0, so results
would not have the CPU's bits. Files are beside CuPy's own, in CUPY_CACHE_DIR.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from kvemb.backends.cuda.source import OPTIONS

_logger = logging.getLogger("kvemb")
_DIGEST_BYTES = 32
_warned: list[str] = []


def binary_of(nvrtc: Any, source: str, architecture: str) -> bytes:
    """Return a program for GPUs of an architecture such as "90", from disk if it was compiled before.

    nvrtc: cupy.cuda.nvrtc. Raises RuntimeError with the compiler's messages.
    """
    options = (*OPTIONS, f"--gpu-architecture=sm_{architecture}")
    name = _digest(repr((source, options, nvrtc.getVersion())).encode()).hex()
    path = _folder() / f"kvemb-{name}.cubin"
    if (kept := _read(path)) is not None:
        return kept
    binary = _compiled(nvrtc, source, options)
    _keep(path, binary)
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


def _folder() -> Path:
    """Return the folder in which CuPy keeps its programs."""
    # Not Path.home(), which fails if a user has no home directory.
    return Path(os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _read(path: Path) -> bytes | None:
    """Return a kept program, or None if there is none, or it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, binary = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return binary if digest == _digest(binary) else None


def _keep(path: Path, binary: bytes) -> None:
    """Write a program under another name, then rename it, because other processes may write it, too."""
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            draft = Path(file.name)
            file.write(_digest(binary) + binary)
        draft.replace(path)
    except OSError as error:
        if draft is not None:
            draft.unlink(missing_ok=True)
        if not _warned:
            _warned.append(str(error))
            _logger.warning(
                "compiled kernels are not kept on disk, so each process compiles for some seconds; set CUPY_CACHE_DIR "
                "to a directory that can be written to (%s)",
                error,
            )
