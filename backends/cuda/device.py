"""A GPU as the hot table uses it: memory, streams, copies, a sort, and kernels; implemented with CuPy.

The table uses addresses, not CuPy's arrays, so that tests can run it on a CPU. A stream is the number by which the CUDA
array interface and DLPack name it: 1 is the default stream of a device, 2 the one of a thread, others are handles.
Longer than 300 lines: what a device does, and how CuPy does it, are read side by side.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.source import OPTIONS
from kvemb.backends.cuda.staging import Staging
from kvemb.errors import BackendUnavailable
from kvemb.options import format_bytes

THREADS = 256
# The most threads in a launch; kernels loop over the rest. Some 15 to 20 times as many as a large GPU runs at once, so
# that it is idle for little of a launch's end.
MAX_THREADS = 1 << 22
DEFAULT_STREAM, THREAD_STREAM = 1, 2
# Of every piece that CuPy allocates, as of its pool's.
ALIGNMENT = 512
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class Memory(NamedTuple):
    """Device memory at an address that is a multiple of 256; freed when `owner` is deleted."""

    address: int
    owner: Any


class Workspace(NamedTuple):
    """Device memory that one call writes intermediate results to. Its contents before and after mean nothing."""

    address: int
    nbytes: int


def sorting_bytes(count: int) -> int:
    """Return the bytes of the workspace for sorting so many numbers with their positions.

    It has a copy, the positions, as much again for a pass of CUB's radix sort, and its counts of digits.
    """
    return (64 << 10) + 34 * count


# Runs a kernel: the stream, its name, how many threads have something to do, and its arguments: int (64 bits, addresses
# too), np.float32, np.float64 or float.
Program = Callable[..., None]


class Device(Protocol):
    """One GPU. What is given to one stream happens in the order of the calls. Thread-safe.

    staging: the pinned memory that its tables share.
    """

    staging: Staging

    def name(self) -> str:
        """Return what its maker calls it."""

    def memory_bytes(self) -> int:
        """Return its total memory in bytes."""

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of undefined contents, for any stream. Raises MemoryError.

        It is the device's again once it is freed, which waits for all work. So it is kept, and not asked for in steps.
        """

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return memory of the host that is copied from and to without a copy in between. Raises MemoryError."""

    def stream(self) -> int:
        """Make a stream, which is kept as long as the device."""

    def bytes_per_second(self) -> float:
        """Return what its memory can move at most, by its clock; 0 if the driver does not say."""

    def event(self, *, timed: bool = False) -> Any:
        """Make an event; of a timed one seconds() can tell."""

    def seconds(self, start: Any, end: Any) -> float:
        """Wait on the host for `end`; return the seconds that the device took from one timed event to the other."""

    def record(self, event: Any, stream: int) -> None:
        """Let the event stand for the work that the stream has now."""

    def wait(self, stream: int, event: Any) -> None:
        """Let later work of the stream wait for the event. The host does not wait."""

    def finish(self, event: Any) -> None:
        """Wait on the host for the event."""

    def upload(self, address: int, array: Any, stream: int) -> None:
        """Copy a contiguous array to the device. One that is pinned must not change until the stream has done it."""

    def download(self, array: Any, address: int, stream: int) -> None:
        """Copy to a contiguous array from the device. It is there once the stream has done it; see finish()."""

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from one address of the device to another."""

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """Set memory to 0."""

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        """Write the positions that sort int64 numbers, stably, to out, int64 too. Both are addresses.

        workspace: of at least sorting_bytes(count).
        """

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        """Sort int64 numbers at an address, in place. workspace: as for order()."""

    def load(self, source: str) -> Program:
        """Compile CUDA C, or return what was compiled before: run(stream, name, threads, *arguments)."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return a C-contiguous array of CuPy, of undefined contents, for the current stream of CuPy."""

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        """Return data.__cuda_array_interface__, and what keeps the memory: data, or of an object with __dlpack__ alone
        an array of CuPy that shares it, safe on its current stream.
        """


class _External:
    """A stream of somebody else's, by CUDA's stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CupyDevice:
    """Device through CuPy. number: which of the machine's GPUs."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        self._runtime = cupy.cuda.runtime
        self._streams: dict[int, Any] = {DEFAULT_STREAM: cupy.cuda.Stream.null, THREAD_STREAM: cupy.cuda.Stream.ptds}
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        self.staging = Staging(self)

    def name(self) -> str:
        """See Device."""
        return str(self._runtime.getDeviceProperties(self._device.id)["name"].decode())

    def memory_bytes(self) -> int:
        """See Device."""
        return int(self._device.mem_info[1])

    def allocate(self, nbytes: int) -> Memory:
        """See Device. Not of CuPy's pool, which would keep what is freed for one stream."""
        with self._device:
            memory = self._allocated(nbytes)
            if memory is None:
                self._free_unused()
                memory = self._allocated(nbytes)
        if memory is None:
            raise MemoryError(f"gpu:{self._device.id} has no {format_bytes(nbytes)} left")
        return Memory(int(memory), memory)

    def _free_unused(self) -> None:
        """Have CuPy and PyTorch free what they keep for later arrays, which may be most of the device."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            sys.modules["torch"].cuda.empty_cache()

    def _allocated(self, nbytes: int) -> Any:
        """Return memory, or None if there is not enough. REQUIRES: this is the current device."""
        try:
            return self._cupy.cuda.Memory(nbytes)
        except self._runtime.CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            return None

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See Device. Not of CuPy's pool, which would keep what is freed for arrays of the same size."""
        try:
            with self._device:
                owner = self._cupy.cuda.PinnedMemory(nbytes, self._runtime.hostAllocPortable)
                memory = self._cupy.cuda.PinnedMemoryPointer(owner, 0)
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(f"the host has no {format_bytes(nbytes)} of pinned memory left: {error}") from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def stream(self) -> int:
        """See Device. It does not wait for the default stream."""
        with self._device:
            made = self._cupy.cuda.Stream(non_blocking=True)
        self._streams[made.ptr] = made
        return int(made.ptr)

    def bytes_per_second(self) -> float:
        """See Device. Memory moves data twice in a tick."""
        kilohertz, bits = (
            self._runtime.deviceGetAttribute(attribute, self._device.id)
            for attribute in (self._runtime.cudaDevAttrMemoryClockRate, self._runtime.cudaDevAttrGlobalMemoryBusWidth)
        )
        return float(2.0 * 1000 * kilohertz * bits / 8)

    def event(self, *, timed: bool = False) -> Any:
        """See Device."""
        with self._device:
            return self._cupy.cuda.Event(disable_timing=not timed)

    def seconds(self, start: Any, end: Any) -> float:
        """See Device."""
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1000

    def record(self, event: Any, stream: int) -> None:
        """See Device."""
        with self._device:
            event.record(self._stream(stream))

    def wait(self, stream: int, event: Any) -> None:
        """See Device."""
        with self._device:
            self._stream(stream).wait_event(event)

    def finish(self, event: Any) -> None:
        """See Device."""
        event.synchronize()

    def upload(self, address: int, array: Any, stream: int) -> None:
        """See Device. From pageable memory the copy is over, or staged, when this returns."""
        self._copy(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice, stream)

    def download(self, array: Any, address: int, stream: int) -> None:
        """See Device."""
        self._copy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost, stream)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """See Device."""
        self._copy(address, source, nbytes, self._runtime.memcpyDeviceToDevice, stream)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        with self._device:
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._stream(stream).ptr)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """See Device."""
        with self._device:
            self._runtime.memsetAsync(address, 0, nbytes, self._stream(stream).ptr)

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        """See Device. CuPy's argsort is stable, and since CuPy 14 the host does not wait for it."""
        with self._device, self._stream(stream), self._allocating_in(workspace):
            self._view(out, count)[...] = self._cupy.argsort(self._view(numbers, count))

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        """See Device."""
        with self._device, self._stream(stream), self._allocating_in(workspace):
            self._view(numbers, count).sort()

    @contextmanager
    def _allocating_in(self, workspace: Workspace) -> Iterator[None]:
        """Let CuPy allocate from a workspace on this thread, and from its own pool once that is used up."""
        cuda, (start, left) = self._cupy.cuda, workspace

        def allocate(nbytes: int) -> Any:
            nonlocal start, left
            taken = -(-nbytes // ALIGNMENT) * ALIGNMENT
            if taken > left:
                return self._cupy.get_default_memory_pool().malloc(nbytes)
            piece = cuda.UnownedMemory(start, nbytes, None, self._device.id)
            start, left = start + taken, left - taken
            return cuda.MemoryPointer(piece, 0)

        with cuda.using_allocator(allocate):
            yield

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

        def run(stream: int, name: str, threads: int, *arguments: Any) -> None:
            blocks = -(-min(threads, MAX_THREADS) // THREADS)
            with self._device, self._stream(stream):
                if name not in functions:
                    functions[name] = module.get_function(name)
                functions[name]((blocks,), (THREADS,), arguments)

        return run

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """See Device."""
        with self._device:
            return self._cupy.empty(shape, dtype)

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        """See Device. CuPy's arrays name CuPy's current stream of the current GPU, which must be theirs."""
        with self._device:
            owner = data if hasattr(data, "__cuda_array_interface__") else self._cupy.from_dlpack(data)
            return owner.__cuda_array_interface__, owner

    def _stream(self, stream: int) -> Any:
        """Return CuPy's object for a stream. REQUIRES: this is the current device."""
        if stream not in self._streams:
            self._streams[stream] = self._cupy.cuda.Stream.from_external(_External(stream))
        return self._streams[stream]

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
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; besides NVIDIA's driver, {install}"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; install NVIDIA's driver, or use devices=None"
        ) from error
    if number >= count:
        raise BackendUnavailable(f"device {name!r} is not available: this machine has {count} GPUs; use devices=None")
    return CupyDevice(cupy, number)
