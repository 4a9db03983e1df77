"""A GPU, through CuPy: the implementation of kvemb.backends.cuda.device, and the devices of this machine by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.compiler import binary_of
from kvemb.backends.cuda.device import Device, Memory, Program, Workspace
from kvemb.backends.cuda.source import kernels_of
from kvemb.backends.cuda.staging import Staging
from kvemb.errors import BackendUnavailable
from kvemb.installed import pip_install
from kvemb.options import format_bytes

THREADS = 256
# The most threads in a launch; kernels loop over the rest. It is 15 to 20 times as many as a large GPU runs at once, so
# that the GPU is idle only for a short time at the end of a launch.
MAX_THREADS = 1 << 22
# The alignment of every allocation of CuPy, as in its pool.
ALIGNMENT = 512
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation

_thread = threading.local()  # placed: whether its current device was chosen


class _External:
    """A stream of another library, in CUDA's stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CupyDevice(Device):
    """Device implemented with CuPy. number: the number of the GPU in the machine."""

    def __init__(self, cupy: Any, number: int) -> None:
        self._cupy, self._device = cupy, cupy.cuda.Device(number)
        self._runtime = cupy.cuda.runtime
        self._streams: dict[int, Any] = {}
        self.idle_streams: list[int] = []
        self._programs: dict[str, Program] = {}
        self._lock = threading.Lock()
        self.staging = Staging(self)

    def _current(self) -> Any:
        """Return a context manager in which this is the thread's current device; then the one before is it again.

        A thread of kvemb stays on its first GPU. Otherwise it would return to GPU 0 each time, on which CUDA then makes
        a context, of hundreds of MB in each process.
        """
        if not getattr(_thread, "placed", False):
            _thread.placed = True
            if threading.current_thread().name.startswith("kvemb-"):
                self._device.use()
        return self._device

    def name(self) -> str:
        return str(self._runtime.getDeviceProperties(self._device.id)["name"].decode())

    def memory_bytes(self) -> int:
        return int(self._device.mem_info[1])

    def allocate(self, nbytes: int) -> Memory:
        # Does not use CuPy's pool, which would keep freed memory for one stream.
        with self._current():
            memory = self._allocated(nbytes)
            if memory is None:
                self._free_unused()
                memory = self._allocated(nbytes)
        if memory is None:
            raise MemoryError(f"gpu:{self._device.id} has less than {format_bytes(nbytes)} left")
        return Memory(int(memory), memory)

    def _free_unused(self) -> None:
        """Make CuPy and PyTorch free the memory that they keep for later arrays, which may be most of the device's."""
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
        # Does not use CuPy's pool, which would keep freed memory for arrays of the same size.
        try:
            with self._current():
                owner = self._cupy.cuda.PinnedMemory(nbytes, self._runtime.hostAllocPortable)
                memory = self._cupy.cuda.PinnedMemoryPointer(owner, 0)
        except self._runtime.CUDARuntimeError as error:
            raise MemoryError(
                f"the host has less than {format_bytes(nbytes)} of pinned memory left: {error}"
            ) from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def stream(self) -> int:
        # The stream does not wait for the default stream.
        with self._current():
            made = self._cupy.cuda.Stream(non_blocking=True)
        self._streams[made.ptr] = made
        return int(made.ptr)

    def bytes_per_second(self) -> float:
        # Memory transfers data twice per clock cycle.
        kilohertz, bits = (
            self._runtime.deviceGetAttribute(attribute, self._device.id)
            for attribute in (self._runtime.cudaDevAttrMemoryClockRate, self._runtime.cudaDevAttrGlobalMemoryBusWidth)
        )
        return float(2.0 * 1000 * kilohertz * bits / 8)

    def event(self, *, timed: bool = False) -> Any:
        with self._current():
            return self._cupy.cuda.Event(disable_timing=not timed)

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1000

    def record(self, event: Any, stream: int) -> None:
        with self._current():
            event.record(self._stream(stream))

    def wait(self, stream: int, event: Any) -> None:
        with self._current():
            self._stream(stream).wait_event(event)

    def finish(self, event: Any) -> None:
        event.synchronize()

    def upload(self, address: int, array: Any, stream: int) -> None:
        # A copy from pageable memory is complete or staged when this returns.
        self._copy(address, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice, stream)

    def download(self, array: Any, address: int, stream: int) -> None:
        self._copy(array.ctypes.data, address, array.nbytes, self._runtime.memcpyDeviceToHost, stream)

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        self._copy(address, source, nbytes, self._runtime.memcpyDeviceToDevice, stream)

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        with self._current():
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._stream(stream).ptr)

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        with self._current():
            self._runtime.memsetAsync(address, 0, nbytes, self._stream(stream).ptr)

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        # CuPy's argsort is stable and, since CuPy 14, asynchronous.
        # Its result is copied as bytes, because for an assignment CuPy compiles a kernel with headers that may be
        # missing.
        with self._current(), self._stream(stream), self._allocating_in(workspace):
            order = self._cupy.argsort(self._view(numbers, count))
            self.copy(out, order.data.ptr, 8 * count, stream)

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        with self._current(), self._stream(stream), self._allocating_in(workspace):
            self._view(numbers, count).sort()

    @contextmanager
    def _allocating_in(self, workspace: Workspace) -> Iterator[None]:
        """Make CuPy allocate from a workspace on this thread, and from its own pool if that is full."""
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
        # CUDA loads each kernel when it is first run.
        with self._lock:
            if source not in self._programs:
                cuda = self._cupy.cuda
                with self._current():
                    module = cuda.function.Module()
                    module.load(binary_of(cuda.nvrtc, source, self._device.compute_capability))
                    kernels = {name: module.get_function(name) for name in kernels_of(source)}
                self._programs[source] = partial(self._run, kernels)
            return self._programs[source]

    def _run(self, kernels: dict[str, Any], stream: int, name: str, threads: int, *arguments: Any) -> None:
        blocks = -(-min(threads, MAX_THREADS) // THREADS)
        with self._current():
            kernels[name]((blocks,), (THREADS,), arguments, stream=self._stream(stream))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        with self._current():
            return self._cupy.empty(shape, dtype)

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        # CuPy's arrays name CuPy's current stream of the current GPU, which must be the array's GPU.
        with self._current():
            owner = data if hasattr(data, "__cuda_array_interface__") else self._cupy.from_dlpack(data)
            return owner.__cuda_array_interface__, owner

    def _stream(self, stream: int) -> Any:
        """Return CuPy's object for a stream. REQUIRES: this is the current device.

        1 and 2 are also CUDA's handles. CuPy's own objects are not used for them, because Stream.null has the handle 0,
        which is another stream if CUPY_CUDA_PER_THREAD_DEFAULT_STREAM is set.
        """
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
    install = f"{pip_install('gpu')} (CUDA 13) or the extra gpu-cuda12; or use devices=None"
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; besides NVIDIA's driver, install CuPy: {install}"
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; install NVIDIA's driver, or use devices=None"
        ) from error
    if number >= count:
        raise BackendUnavailable(f"device {name!r} is not available: this machine has {count} GPUs; use devices=None")
    try:
        cupy.cuda.nvrtc.getVersion()
    except RuntimeError as error:
        raise BackendUnavailable(
            f"device {name!r} is not available: {error}; install CUDA's run-time compiler: {install}"
        ) from error
    return CupyDevice(cupy, number)
