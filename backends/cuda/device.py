"""The interface to a GPU: memory, streams, copies, sorting and kernels. cupy_device.py implements it with CuPy.

The table uses addresses, not CuPy's arrays, so that tests can run it on a CPU. A stream is a number as in the CUDA
array interface and DLPack: 1 is the device's default stream, 2 the thread's default stream, others are handles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvemb.backends.cuda.staging import Staging


class Memory(NamedTuple):
    """Device memory at an address that is a multiple of 256; freed when `owner` is deleted."""

    address: int
    owner: Any


class Workspace(NamedTuple):
    """Device memory for one call's intermediate results. Its contents are undefined before and after the call."""

    address: int
    nbytes: int


def sorting_bytes(count: int) -> int:
    """Return the bytes of the workspace for sorting `count` numbers with their positions.

    It holds a copy, the positions, as much again for a pass of CUB's radix sort, and the sort's counts of digits.
    """
    return (64 << 10) + 34 * count


# Runs a kernel. Arguments: the stream, the kernel's name, the number of threads, and the kernel's arguments: int (64
# bits, also for addresses), np.float32, np.float64 or float.
Program = Callable[..., None]


class Device(Protocol):
    """One GPU. Work on one stream runs in the order of the calls. Thread-safe.

    staging: the pinned memory that its tables share. idle_streams: those of tables that no longer exist, for new ones.
    """

    staging: Staging
    idle_streams: list[int]

    def name(self) -> str:
        """Return the product name."""

    def memory_bytes(self) -> int:
        """Return its total memory in bytes."""

    def allocate(self, nbytes: int) -> Memory:
        """Return memory of undefined contents, for any stream. Raises MemoryError.

        Freeing it returns it to the device, which waits for all work. So callers keep memory, and do not allocate in
        small steps.
        """

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return pinned memory of the host, which is copied without an intermediate copy. Raises MemoryError."""

    def stream(self) -> int:
        """Make a stream, which lives as long as the device."""

    def bytes_per_second(self) -> float:
        """Return the peak bandwidth of its memory, from the memory's clock; 0 if the driver does not tell."""

    def event(self, *, timed: bool = False) -> Any:
        """Make an event. timed: whether seconds() can use it."""

    def seconds(self, start: Any, end: Any) -> float:
        """Wait on the host for `end`; return the seconds between two timed events on the device."""

    def record(self, event: Any, stream: int) -> None:
        """Record the work that the stream has now in the event."""

    def wait(self, stream: int, event: Any) -> None:
        """Let later work of the stream wait for the event. The host does not wait."""

    def finish(self, event: Any) -> None:
        """Wait on the host for the event."""

    def upload(self, address: int, array: Any, stream: int) -> None:
        """Copy a contiguous array to the device. A pinned array must not change until the copy is complete."""

    def download(self, array: Any, address: int, stream: int) -> None:
        """Copy to a contiguous array from the device. Wait for the stream before reading it; see finish()."""

    def copy(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copy from one address of the device to another."""

    def zero(self, address: int, nbytes: int, stream: int) -> None:
        """Set memory to 0."""

    def order(self, numbers: int, count: int, out: int, workspace: Workspace, stream: int) -> None:
        """Write the int64 positions that stably sort int64 numbers to out. numbers, out: addresses.

        workspace: at least sorting_bytes(count) bytes.
        """

    def sort(self, numbers: int, count: int, workspace: Workspace, stream: int) -> None:
        """Sort int64 numbers at an address, in place. workspace: as for order()."""

    def load(self, source: str) -> Program:
        """Compile and load CUDA C, unless it is loaded already; return run(stream, name, threads, *arguments)."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised, C-contiguous CuPy array, for CuPy's current stream."""

    def interface(self, data: Any) -> tuple[dict[str, Any], Any]:
        """Return data.__cuda_array_interface__, and an object that keeps the memory alive.

        That object is data; if data has only __dlpack__, it is a CuPy array that shares the memory, safe to use on
        CuPy's current stream.
        """
