"""A GPU as the hot table uses it: memory, copies, a sort, and kernels, all on one stream; implemented with CuPy.

The table uses addresses, not CuPy's arrays, so that tests can run it on a CPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvemb.backends.cuda.source import OPTIONS
from kvemb.errors import BackendUnavailable
from kvemb.options import format_bytes

THREADS = 256
# The most threads in a launch; kernels loop over the rest. 16 for each lane of the largest GPU today.
MOST_THREADS = 1 << 20


class Memory(NamedTuple):
    """Device memory at an address that is a multiple of 256; freed when `owner` is deleted."""

    address: int
    owner: Any


# Runs a kernel: its name, how many threads have something to do, and its arguments: int (64 bits, addresses too),
# np.float32, np.float64 or float.
Program = Callable[..., None]


class Device(Protocol):
    """One GPU. Everything happens in the order of the calls; copies to the host wait. Thread-safe."""

    def memory_bytes(self) -> int:
        """Return its total memory in bytes."""

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of undefined contents. Raises MemoryError."""

    def upload(self, address: int, array: Any) -> None:
        """Copy a contiguous array to the device."""

    def download(self, array: Any, address: int) -> None:
        """Copy to a contiguous array from the device."""

    def order(self, numbers: int, count: int, out: int) -> None:
        """Write the positions that sort int64 numbers, stably, to out, int64 too. Both are addresses."""

    def load(self, source: str) -> Program:
        """Compile CUDA C, or return what was compiled before: run(name, threads, *arguments)."""


class CupyDevice:
    """Device through CuPy. number: which of the machine's GPUs."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        with self._device:
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()

    def memory_bytes(self) -> int:
        """See Device."""
        return int(self._device.mem_info[1])

    def allocate(self, nbytes: int) -> Memory:
        """See Device."""
        try:
            with self._device, self._stream:
                pointer = self._cupy.cuda.alloc(nbytes)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(f"gpu:{self._device.id} has no {format_bytes(nbytes)} left") from error
        return Memory(int(pointer.ptr), pointer)

    def upload(self, address: int, array: Any) -> None:
        """See Device. From pageable memory the copy is over, or staged, when this returns."""
        kind = self._cupy.cuda.runtime.memcpyHostToDevice
        with self._device:
            self._cupy.cuda.runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._stream.ptr)

    def download(self, array: Any, address: int) -> None:
        """See Device."""
        kind = self._cupy.cuda.runtime.memcpyDeviceToHost
        with self._device:
            self._cupy.cuda.runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, kind, self._stream.ptr)
            self._stream.synchronize()

    def order(self, numbers: int, count: int, out: int) -> None:
        """See Device. CuPy's argsort is stable."""
        with self._device, self._stream:
            self._view(out, count)[...] = self._cupy.argsort(self._view(numbers, count))

    def load(self, source: str) -> Program:
        """See Device."""
        with self._lock:
            if source not in self._programs:
                with self._device:
                    module = self._cupy.RawModule(code=source, options=OPTIONS)
                self._programs[source] = self._program(module)
            return self._programs[source]

    def _program(self, module: Any) -> Program:
        functions: dict[str, Any] = {}

        def run(name: str, threads: int, *arguments: Any) -> None:
            blocks = -(-min(threads, MOST_THREADS) // THREADS)
            with self._device, self._stream:
                if name not in functions:
                    functions[name] = module.get_function(name)
                functions[name]((blocks,), (THREADS,), arguments)

        return run

    def _view(self, address: int, count: int) -> Any:
        cupy = self._cupy
        memory = cupy.cuda.UnownedMemory(address, count * 8, None, self._device.id)
        return cupy.ndarray((count,), np.int64, cupy.cuda.MemoryPointer(memory, 0))


@cache
def open_device(name: str) -> Device:
    """Return the GPU with a name such as "gpu:0". Raises BackendUnavailable if it, its driver or CuPy is missing."""
    number = int(name.partition(":")[2])
    install = "install CuPy: pip install 'kvemb[gpu]' (CUDA 13) or 'kvemb[gpu-cuda12]'; or use devices=None"
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(f"device {name!r} is not available: {error}; {install}") from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; install NVIDIA's driver, or use devices=None"
        ) from error
    if number >= count:
        raise BackendUnavailable(f"device {name!r} is not available: this machine has {count} GPUs; use devices=None")
    return CupyDevice(cupy, number)
