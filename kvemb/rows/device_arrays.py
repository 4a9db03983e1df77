"""Arrays in a GPU's memory, as callers give them: their device, and the calls of their library.

Known are PyTorch's tensors, arrays with __cuda_array_interface__ such as CuPy's, and those with __dlpack__. No library
is imported here; a caller with an array of it has done so. Functions that call PyTorch stand apart, so that tests can
replace them, and use tensors in the host's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from kvemb.rows.tensors import refusal

# By DLPack: a GPU's memory, and memory that the GPU and the host share. (dlpack.h; do not renumber.)
_DEVICE_TYPES = (2, 13)
# The default stream of a device, as the CUDA array interface and DLPack number streams.
DEFAULT_STREAM = 1
# Of an array whose library does not say which GPU it is on.
SOME_GPU = "gpu"


@dataclass(frozen=True)
class DeviceArray:
    """A C-contiguous array in a GPU's memory. stream: on which it may be used; owner: keeps its memory.

    version: another number once the owner was changed in place; None: nobody counts that. storage: of a tensor, keeps
    its memory even where the tensor is given another (tensor.data = another). borrowed: it is its library's again when
    the call ends, whatever the stream.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int
    owner: Any
    version: int | None = None
    storage: Any = None
    borrowed: bool = False

    @property
    def size(self) -> int:
        """Its elements."""
        return prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the first axis; of an array of numbers, of one."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def reshaped(self, *shape: int) -> DeviceArray:
        """Return the same memory as an array of another shape."""
        return replace(self, shape=shape)

    def is_as(self, other: DeviceArray | None) -> bool:
        """Whether it is known to be the same array with the same contents.

        It is where PyTorch's autograd would trust what it saved for backward. tensor.data = another changes the address
        and the storage, not the version; the other's storage is kept, so its address is nobody else's. resize_() and
        set_() change the version. What nobody counts: writes through tensor.data or a view that another library has.
        """
        if other is None or self.version is None:
            return False
        mine, theirs = ((each.version, each.address, each.shape, each.dtype) for each in (self, other))
        return self.owner is other.owner and self.storage is other.storage and mine == theirs

    def seen_as(self, dtype: np.dtype[Any]) -> DeviceArray:
        """Return the same memory as an array of another dtype of this size."""
        return replace(self, dtype=dtype)


def device_of(data: Any) -> str | None:
    """Return the device that an array is on, such as "gpu:0" ("gpu": some GPU); None if it is on none."""
    if type(data) is np.ndarray:
        return None
    if isinstance(data, (list, tuple, int, np.generic)):
        return None
    if is_tensor(data):
        number = gpu_of_tensor(data)
        return None if number is None else f"gpu:{number}"
    if hasattr(data, "__dlpack_device__") and not isinstance(data, np.ndarray):
        kind, number = data.__dlpack_device__()
        return f"gpu:{number}" if int(kind) in _DEVICE_TYPES else None
    return SOME_GPU if hasattr(data, "__cuda_array_interface__") else None


def read_array(
    data: Any,
    dtype: np.dtype[Any] | None,
    shape: tuple[int, ...] | None,
    what: str,
    interface: Callable[[Any], tuple[dict[str, Any], Any]],
    *,
    written: bool = False,
) -> DeviceArray:
    """Return an array that is on a GPU. dtype, shape: None for any; written: it is to be filled.

    interface: tells where an array is that is no tensor (contracts.DeviceRows). Nothing is converted: raises TypeError
    for another dtype, and ValueError for another shape, one that is not C-contiguous, or at no multiple of an item.
    """
    found, contiguous, writable = _of_tensor(data, what) if is_tensor(data) else _of_interface(data, interface)
    dtype = found.dtype if dtype is None else dtype
    if found.dtype != dtype and not (dtype.name == "bfloat16" and found.dtype == np.dtype("V2")):
        raise TypeError(
            f"{what} must be {dtype.name}, got {found.dtype.name}: arrays on a GPU are not converted; "
            f"convert them there, with {what}.astype({dtype.name!r}), of a tensor {what}.to(torch.{dtype.name})"
        )
    if shape is not None and found.shape != shape:
        raise ValueError(f"{what} must have shape {shape}, got {found.shape}")
    if not contiguous:
        raise ValueError(f"{what} must be C-contiguous on a GPU; pass cupy.ascontiguousarray({what}), or .contiguous()")
    if found.address % dtype.itemsize:
        raise ValueError(f"{what} must begin at a multiple of {dtype.itemsize} bytes on a GPU; pass a copy of it")
    if written and not writable:
        raise ValueError(f"{what} must be an array that may be written, and this one is read-only")
    return found.seen_as(dtype)


def empty_like(
    data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], empty: Callable[[tuple[int, ...], np.dtype[Any]], Any]
) -> Any:
    """Return an uninitialised array for an answer to data, on its device. empty: makes one of CuPy.

    It is one of PyTorch or CuPy, which in_kind() makes one of the library of data once it is filled.
    """
    return empty_tensor(data, shape, dtype.name) if is_tensor(data) else empty(shape, dtype)


def in_kind(data: Any, made: Any) -> Any:
    """Return a filled array as one of the library of data; of CuPy, for a library that can take in no other's."""
    if is_tensor(made) or type(made) is type(data) or not hasattr(data, "__array_namespace__"):
        return made
    return data.__array_namespace__().from_dlpack(made)


def is_tensor(data: Any) -> bool:
    """Whether this is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def _of_tensor(data: Any, what: str) -> tuple[DeviceArray, bool, bool]:
    torch = sys.modules["torch"]
    if (advice := refusal(torch, data, what)) is not None:
        raise TypeError(f"{what} must be a plain tensor or an array, got a tensor that {advice}")
    name = str(data.dtype).removeprefix("torch.")
    dtype = np.dtype("V2") if name == "bfloat16" else np.dtype(name)
    data = data.resolve_neg()
    address = data.data_ptr() if data.numel() else 0
    # The count that autograd trusts for what it saved for backward.
    version = None if data.is_inference() else data._version
    storage = None if version is None else data.untyped_storage()
    found = DeviceArray(address, tuple(data.shape), dtype, stream_of_tensor(data), data, version, storage)
    return found, data.is_contiguous(), True


def _of_interface(data: Any, interface: Callable[[Any], tuple[dict[str, Any], Any]]) -> tuple[DeviceArray, bool, bool]:
    borrowed = not hasattr(data, "__cuda_array_interface__")
    told, owner = interface(data)
    shape, dtype, (address, read_only) = tuple(told["shape"]), np.dtype(told["typestr"]), told["data"]
    strides = told.get("strides")
    expected = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    contiguous = strides is None or not prod(shape) or _steps(shape, strides) == _steps(shape, expected)
    stream = told.get("stream") or DEFAULT_STREAM
    found = DeviceArray(int(address or 0), shape, dtype, int(stream), owner, borrowed=borrowed)
    return found, contiguous, not read_only


def _steps(shape: tuple[int, ...], strides: Any) -> list[int]:
    """Return the strides that matter: those of axes longer than 1."""
    return [step for length, step in zip(shape, strides, strict=True) if length > 1]


# What is asked of PyTorch.


def gpu_of_tensor(tensor: Any) -> int | None:
    """Return the number of the GPU that a tensor is on, None if it is on none."""
    return int(tensor.device.index) if tensor.is_cuda else None


def stream_of_tensor(tensor: Any) -> int:
    """Return PyTorch's current stream of the tensor's device. Raises RuntimeError while a CUDA graph is captured."""
    torch = sys.modules["torch"]
    stream = torch.cuda.current_stream(tensor.device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "calls on a variable cannot be captured in a CUDA graph, as the host is told which keys are not hot; make "
            "them before and after the graph, with tensors that the graph reads and writes"
        )
    return int(stream.cuda_stream) or DEFAULT_STREAM


def empty_tensor(tensor: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return an uninitialised tensor of a dtype on the device of another one."""
    torch: Any = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, name), device=tensor.device)
