"""Compiles CUDA C for GPUs that this machine does not have, with NVIDIA's run-time compiler (nvidia-cuda-nvrtc)."""

from __future__ import annotations

import ctypes
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from made_once import digest, made_once

from kvemb.backends.cuda.source import OPTIONS

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_REPORT = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


# Registers and concurrent threads of one multiprocessor of each GPU. Registers are allocated in units of 8 per thread.
REGISTERS, THREADS = 65_536, 2048


class Used(NamedTuple):
    """The resources of one kernel: registers per thread, and bytes of memory per thread for spilled registers."""

    registers: int
    stack_bytes: int
    spilled_bytes: int

    def occupancy(self, block: int = 256) -> float:
        """Return the share of a multiprocessor's threads for which its registers suffice, in blocks of so many."""
        return min(THREADS // block, REGISTERS // (-(-self.registers // 8) * 8 * block)) * block / THREADS


@cache
def _library() -> Any:
    where = pytest.importorskip("nvidia.cu13", reason="nvidia.cu13 is not installed; it is of kvemb[test-all]")
    found = [Path(folder, "lib", "libnvrtc.so.13") for folder in where.__path__]
    return ctypes.CDLL(str(next(path for path in found if path.exists())))


def used_by(source: str, architecture: str) -> dict[str, Used]:
    """Compile; returns the resources of each kernel. Fails with the compiler's messages."""
    log = _compiled(source, f"--gpu-architecture={architecture}", "--ptxas-options=-v")[1]
    assert "warning" not in log, log
    return {
        name: Used(int(registers), int(stack), int(stores) + int(loads))
        for name, stack, stores, loads, registers in _REPORT.findall(log)
    }


def assembly_of(source: str) -> str:
    """Return PTX, NVIDIA's portable assembly."""
    return _compiled(source, "--gpu-architecture=compute_80")[0]


def instructions_of(source: str) -> dict[str, list[str]]:
    """Return the PTX instructions of each kernel, in order."""
    entries = re.findall(r"\.entry (\w+)\(.*?^\{(.*?)^\}", assembly_of(source), re.DOTALL | re.MULTILINE)
    return {name: re.findall(r"^\s+(?!\.)([@\w{].*;)", body, re.MULTILINE) for name, body in entries}


@cache
def _compiled(source: str, *options: str) -> tuple[str, str]:
    """Return PTX and the compiler's messages."""
    nvrtc, given = _library(), (*OPTIONS, *options)
    version = (ctypes.c_int * 2)()
    nvrtc.nvrtcVersion(ctypes.byref(version, 0), ctypes.byref(version, ctypes.sizeof(ctypes.c_int)))
    name = f"{digest(source, given, list(version))}.json"
    done = made_once("nvrtc", name, lambda path: path.write_text(json.dumps(_compile(source, given))))
    ptx, log = json.loads(done.read_text())
    return ptx, log


def _compile(source: str, options: tuple[str, ...]) -> tuple[str, str]:
    nvrtc, program = _library(), ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    given = [option.encode() for option in options]
    failed = nvrtc.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*given))
    log = _text(program, "ProgramLog")
    assert not failed, log
    ptx = _text(program, "PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx, log


def _text(program: Any, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(1, size.value))
    getattr(_library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode(errors="replace")
