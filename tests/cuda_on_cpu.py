"""A Device (kvemb.backends.cuda.device) that is this machine's CPU, and the GPU's hot table on it.

g++ compiles the GPU's own kernels behind backends/cuda/cuda_on_cpu.h. What is built is kept in the system's temporary
folder, by its content. Memory has a known filling, and bytes after its end that must not change.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from arrays_on_device import ArrayOnDevice

from kvemb.backends.cuda.device import Memory, Program, Workspace, sorting_bytes
from kvemb.backends.cuda.staging import Staging
from kvemb.backends.cuda.table import CudaTable
from kvemb.errors import BackendUnavailable
from kvemb.limits import DEFAULT, Limits
from kvemb.rows.schema import Schema

HERE = Path(__file__).parent / "backends" / "cuda"
DEVICE_BYTES = 1 << 21
FILLING, GUARD_BYTES = 0xCD, 64
FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-Wno-unknown-pragmas", "-Wall")
TSAN_FLAGS = ("-O1", "-g", "-fsanitize=thread")
ALIGNMENT_FLAGS = ("-O1", "-fsanitize=alignment")
_KERNEL = re.compile(r"^(?:\w+_)?KERNEL (\w+)\(", re.MULTILINE)
_ENTRY = """
extern "C" const char* run_{name}(unsigned blocks, unsigned threads, uint64_t seed, void** arguments) {{
  return cpu::launch(blocks, threads, seed, [](void* given) {{ cpu::call({name}, (void**)given); }}, arguments);
}}
"""


class Guarded:
    """Device memory: bytes, and behind them a guard."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes + GUARD_BYTES + 256, FILLING, np.uint8)
        self.start = -self.bytes.ctypes.data % 256
        self._end = self.start + nbytes

    def __del__(self) -> None:
        assert not self.bytes[self._end :].tobytes().strip(bytes([FILLING])), (
            "a kernel wrote behind the end of its memory"
        )


class Moment:
    """An event: when it was recorded last."""

    at = 0.0


class CpuDevice:
    """Device on the CPU: work is done when it is given to a stream. seed: of the order in which threads run, which
    every launch continues from. launches: how many there were of each kernel."""

    def __init__(self, seed: int = 1, flags: Sequence[str] = ("-O1",)) -> None:
        self._random = np.random.default_rng(seed)
        self._flags = tuple(flags)
        # Two, and one of them reentrant, as memory may be freed within either, for which a device may do its work.
        self._lock, self._loading = threading.RLock(), threading.Lock()
        self._programs: dict[str, Program] = {}
        self._streams = itertools.count(16)
        self.launches: dict[str, int] = {}
        self.staging = Staging(self)

    def name(self) -> str:
        return "this machine's CPU"

    def memory_bytes(self) -> int:
        return DEVICE_BYTES

    def allocate(self, nbytes: int) -> Memory:
        owner = Guarded(nbytes)
        return Memory(owner.bytes.ctypes.data + owner.start, owner)

    def pinned(self, nbytes: int) -> Any:
        return np.full(nbytes, FILLING, np.uint8)

    def stream(self) -> int:
        return next(self._streams)

    def bytes_per_second(self) -> float:
        return 1e10

    def event(self, *, timed: bool = False) -> Any:
        return Moment()

    def seconds(self, start: Any, end: Any) -> float:
        return end.at - start.at  # type: ignore[no-any-return]

    def record(self, event: Any, stream: int) -> None:
        event.at = time.perf_counter()

    def wait(self, stream: int, event: Any) -> None:
        pass

    def finish(self, event: Any) -> None:
        pass

    def upload(self, address: int, array: Any, stream: int) -> None:
        assert array.flags.c_contiguous
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, array: Any, address: int, stream: int) -> None:
        assert array.flags.c_contiguous
        assert array.flags.writeable
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(address, source, nbytes)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        ctypes.memset(address, 0, nbytes)

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        _spoil(workspace, count)
        given, result = (np.frombuffer((ctypes.c_int64 * count).from_address(at), np.int64) for at in (numbers, out))
        result[:] = np.argsort(given, kind="stable")

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        _spoil(workspace, count)
        np.frombuffer((ctypes.c_int64 * count).from_address(numbers), np.int64).sort()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ArrayOnDevice(np.full(shape, -7).astype(dtype))

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        if hasattr(data, "__cuda_array_interface__"):
            return data.__cuda_array_interface__, data
        owner = ArrayOnDevice(np.from_dlpack(data.array), stream=data.__dlpack__(stream=1))
        return owner.__cuda_array_interface__, owner

    def load(self, source: str) -> Program:
        with self._loading:
            if source not in self._programs:
                self._programs[source] = self._program(ctypes.CDLL(str(built(source, self._flags))))
            return self._programs[source]

    def _program(self, library: Any) -> Program:
        def run(stream: int, name: str, threads: int, *arguments: Any) -> None:
            held = [_as_c(argument) for argument in arguments]
            pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
            function = getattr(library, f"run_{name}")
            function.restype = ctypes.c_char_p
            with self._lock:
                self.launches[name] = self.launches.get(name, 0) + 1
                blocks, warps = self._random.integers(1, 4), self._random.integers(1, 3)
                needed = -(-threads // 32)
                blocks, warps = (1, 1) if needed == 1 else (min(int(blocks), needed), int(warps))
                seed = ctypes.c_uint64(int(self._random.integers(1, 1 << 63)))
                error = function(blocks, 32 * warps, seed, pointers)
            if error:
                raise RuntimeError(f"kernel {name}: {error.decode()}")

        return run


def _spoil(workspace: Workspace, count: int) -> None:
    """Write over the workspace for sorting so many numbers, as a sort does."""
    assert workspace.nbytes >= sorting_bytes(count)
    ctypes.memset(workspace.address, FILLING, sorting_bytes(count))


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.float32):
        return ctypes.c_float(float(argument))
    if isinstance(argument, float):  # np.float64 too
        return ctypes.c_double(argument)
    return ctypes.c_int64(int(argument))


def require_compiler() -> None:
    """Raise BackendUnavailable where there is no g++."""
    if shutil.which("g++") is None:
        raise BackendUnavailable("CUDA kernels run on a CPU only where g++ is installed")


@cache
def built(source: str, flags: tuple[str, ...]) -> Path:
    """Return the library of kernels for this machine, built by g++ if it is not there."""
    names = _KERNEL.findall(source)
    glue = "".join(_ENTRY.format(name=name) for name in names)
    text = f'#include "cuda_on_cpu.h"\n{source}\n{glue}'
    runtime = (HERE / "cuda_on_cpu.cpp").read_text() + (HERE / "cuda_on_cpu.h").read_text()
    folder = Path(tempfile.gettempdir(), f"kvemb-cuda-on-cpu-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    shared = _object("runtime", runtime, HERE / "cuda_on_cpu.cpp", folder, _runtime_flags(flags))
    target = folder / f"{_digest(text + runtime, flags)}.so"
    if not target.exists():
        kernels = folder / f"{target.stem}-{os.getpid()}.cpp"
        kernels.write_text(text)
        _compile([*FLAGS, *flags, "-shared", str(kernels), str(shared)], target)
        kernels.unlink()
    return target


def _object(name: str, text: str, source: Path, folder: Path, flags: tuple[str, ...]) -> Path:
    target = folder / f"{name}-{_digest(text, flags)}.o"
    if not target.exists():
        _compile([*FLAGS, *flags, "-c", str(source)], target)
    return target


def _runtime_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """What runs fibers is not itself watched by ThreadSanitizer."""
    return ("-O2", "-DUNDER_TSAN") if "-fsanitize=thread" in flags else ("-O2",)


def _compile(arguments: list[str], target: Path) -> None:
    """Build a file under another name first, since other processes may build it too."""
    draft = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(["g++", f"-I{HERE}", *arguments, "-o", str(draft)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    draft.rename(target)


def _digest(text: str, flags: tuple[str, ...]) -> str:
    return hashlib.sha256((text + repr((FLAGS, flags))).encode()).hexdigest()[:16]


@cache
def cpu_device(name: str) -> CpuDevice:
    """The device of this name."""
    return CpuDevice(seed=len(name))


class CudaOnCpuTable(CudaTable):
    """The GPU's hot table on the CPU."""

    open_device = staticmethod(cpu_device)


class SmallCudaTable(CudaOnCpuTable):
    """One of a single bucket, whatever is asked for."""

    def __init__(
        self,
        schema: Schema,
        capacity_rows: int,
        max_capacity_rows: int,
        limits: Limits = DEFAULT,
        device: str | None = None,
    ) -> None:
        super().__init__(schema, self.cells_per_bucket, self.cells_per_bucket, limits, device)
