"""A Device (kvemb.backends.cuda.device) on this machine's CPU, and the GPU's hot table on it.

g++ compiles the GPU's own kernels with backends/cuda/cuda_on_cpu.h. Libraries are kept in the system's temporary
folder, named by their content. Memory has a known filling, and bytes after its end that must not change. Kernels may
access only the device's memory and callers' arrays, at aligned addresses.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from arrays_on_device import ArrayOnDevice
from made_once import digest, made_once

from kvemb.backends.cuda.device import Memory, Program, Workspace, sorting_bytes
from kvemb.backends.cuda.source import kernels_of
from kvemb.backends.cuda.staging import Staging
from kvemb.backends.cuda.table import CudaTable
from kvemb.errors import BackendUnavailable
from kvemb.rows.schema import Schema

HERE = Path(__file__).parent / "backends" / "cuda"
DEVICE_BYTES = 1 << 21
FILLING, GUARD_BYTES = 0xCD, 64
FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-Wno-unknown-pragmas", "-Wall")
TSAN_FLAGS = ("-O1", "-g", "-fsanitize=thread")
# Every access of a kernel is a call first, of what cuda_on_cpu.cpp has in place of AddressSanitizer.
CHECKED_FLAGS = (
    "-O1", "-fsanitize=kernel-address", "--param=asan-instrumentation-with-call-threshold=0", "--param=asan-stack=0",
    "--param=asan-globals=0",
)  # fmt: skip
_ENTRY = """
extern "C" const char* run_{name}(
    unsigned blocks, unsigned threads, uint64_t seed, cpu::Pieces memory, void** arguments) {{
  return cpu::launch(blocks, threads, seed, memory, [](void* given) {{ cpu::call({name}, (void**)given); }}, arguments);
}}
"""


class Guarded:
    """Device memory: bytes, followed by a guard."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes + GUARD_BYTES + 256, FILLING, np.uint8)
        self.start = -self.bytes.ctypes.data % 256
        self._end = self.start + nbytes

    def __del__(self) -> None:
        assert not self.bytes[self._end :].tobytes().strip(bytes([FILLING])), (
            "a kernel wrote behind the end of its memory"
        )


class Pieces(ctypes.Structure):
    """Pieces of memory, ascending: the first address and the end of each."""

    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_uint64))

    def __init__(self, pieces: list[tuple[int, int]]) -> None:
        joined: list[list[int]] = []
        for start, end in sorted(pieces):
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(end, joined[-1][1])
            else:
                joined.append([start, end])
        self._kept = np.array(joined, np.uint64)
        super().__init__(self._kept.ctypes.data, len(joined))


class Moment:
    """An event: the time at which it was last recorded."""

    at = 0.0


class CpuDevice:
    """Device on the CPU: work is done when it is given to a stream. seed: of the order in which threads run, which
    every launch continues from. launches: how many there were of each kernel."""

    def __init__(self, seed: int = 1, flags: Sequence[str] = CHECKED_FLAGS) -> None:
        self._random = np.random.default_rng(seed)
        self._flags = tuple(flags)
        # Two, and one of them reentrant, as memory may be freed within either, for which a device may do its work.
        self._lock, self._loading = threading.RLock(), threading.Lock()
        self._lent: dict[int, tuple[int, int]] = {}
        self._programs: dict[str, Program] = {}
        self._streams = itertools.count(16)
        self.idle_streams: list[int] = []
        self.launches: dict[str, int] = {}
        self.staging = Staging(self)

    def name(self) -> str:
        return "this machine's CPU"

    def memory_bytes(self) -> int:
        return DEVICE_BYTES

    def allocate(self, nbytes: int) -> Memory:
        return self.lent(Guarded(nbytes), nbytes)

    def lent(self, owner: Any, nbytes: int) -> Memory:
        address = owner.bytes.ctypes.data + owner.start
        self.lend(owner, address, nbytes)
        return Memory(address, owner)

    def lend(self, owner: Any, address: int, nbytes: int) -> None:
        """Let kernels use memory as long as its owner lives."""
        if id(owner) not in self._lent:
            weakref.finalize(owner, self._lent.pop, id(owner)).atexit = False
        self._lent[id(owner)] = address, address + nbytes

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

    def _check(self, address: int, nbytes: int) -> None:
        pieces = list(self._lent.values())
        assert any(start <= address and address + nbytes <= end for start, end in pieces), "not the device's memory"

    def upload(self, address: int, array: Any, stream: int) -> None:
        self._check(address, array.nbytes)
        assert array.flags.c_contiguous
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, array: Any, address: int, stream: int) -> None:
        self._check(address, array.nbytes)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self._check(address, nbytes)
        self._check(source, nbytes)
        ctypes.memmove(address, source, nbytes)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        self._check(address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        self._spoil(workspace, count)
        self._check(numbers, 8 * count)
        self._check(out, 8 * count)
        given, result = (np.frombuffer((ctypes.c_int64 * count).from_address(at), np.int64) for at in (numbers, out))
        result[:] = np.argsort(given, kind="stable")

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        self._spoil(workspace, count)
        self._check(numbers, 8 * count)
        np.frombuffer((ctypes.c_int64 * count).from_address(numbers), np.int64).sort()

    def _spoil(self, workspace: Workspace, count: int) -> None:
        """Overwrite the workspace for sorting so many numbers, as a sort does."""
        assert workspace.nbytes >= sorting_bytes(count)
        self._check(workspace.address, workspace.nbytes)
        ctypes.memset(workspace.address, FILLING, sorting_bytes(count))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return ArrayOnDevice(np.full(shape, -7).astype(dtype))

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        owner = data
        if not hasattr(data, "__cuda_array_interface__"):
            owner = ArrayOnDevice(np.from_dlpack(data.array), stream=data.__dlpack__(stream=1))
        told = owner.__cuda_array_interface__
        self.lend(owner, told["data"][0], owner.array.nbytes)
        return told, owner

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
                memory = Pieces(list(self._lent.values()))
                error = function(blocks, 32 * warps, seed, memory, pointers)
            if error:
                raise RuntimeError(f"kernel {name}: {error.decode()}")

        return run


def _as_c(argument: Any) -> Any:
    """Return an argument as CuPy passes it: a NumPy number with its own bytes."""
    if isinstance(argument, np.float32):
        return ctypes.c_float(float(argument))
    if isinstance(argument, float):  # np.float64 too
        return ctypes.c_double(argument)
    assert type(argument) in (int, np.int64, np.uint64), f"a kernel gets {argument!r}, a {type(argument).__name__}"
    return ctypes.c_int64(int(argument))


def require_compiler() -> None:
    """Raise BackendUnavailable if g++ is not installed."""
    if shutil.which("g++") is None:
        raise BackendUnavailable("CUDA kernels run on a CPU only where g++ is installed")


@cache
def built(source: str, flags: tuple[str, ...]) -> Path:
    """Return the library of kernels for this machine, built by g++ if it is missing."""
    glue = "".join(_ENTRY.format(name=name) for name in kernels_of(source))
    text = f'#include "cuda_on_cpu.h"\n{source}\n{glue}'
    own = HERE / "cuda_on_cpu.cpp"
    runtime = own.read_text() + (HERE / "cuda_on_cpu.h").read_text()
    name = f"runtime-{digest(runtime, FLAGS, flags)}.o"
    shared = made_once("cuda-on-cpu", name, lambda to: _compile(to, *_runtime_flags(flags), "-c", str(own)))

    def build(target: Path) -> None:
        kernels = target.with_suffix(f"{target.suffix}.cpp")
        kernels.write_text(text)
        _compile(target, *flags, "-shared", str(kernels), str(shared))
        kernels.unlink()

    return made_once("cuda-on-cpu", f"{digest(text, runtime, FLAGS, flags)}.so", build)


def _runtime_flags(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options of g++: ThreadSanitizer does not watch the code that runs fibers."""
    return ("-O2", "-DUNDER_TSAN") if "-fsanitize=thread" in flags else ("-O2",)


def _compile(target: Path, *arguments: str) -> None:
    command = ["g++", f"-I{HERE}", *FLAGS, *arguments, "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@cache
def cpu_device(name: str) -> CpuDevice:
    """The device of this name."""
    return CpuDevice(seed=len(name))


class CudaOnCpuTable(CudaTable):
    """The GPU's hot table on the CPU."""

    open_device = staticmethod(cpu_device)


class SmallCudaTable(CudaOnCpuTable):
    """A table of a single bucket, whatever size is requested."""

    def __init__(self, schema: Schema, _first: int, _most: int, *rest: Any) -> None:
        super().__init__(schema, self.cells_per_bucket, self.cells_per_bucket, *rest)
