"""Callers' arrays in a GPU's memory: where they are, and calls of their libraries.

PyTorch's tensors, arrays with __cuda_array_interface__ such as CuPy's, and arrays with __dlpack__ are supported. No
library is imported here; a caller with an array has imported its library. Functions that call PyTorch are separate, so
that tests can replace them and use tensors in the host's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from kvemb.rows.tensors import is_of, refusal

# DLPack's device types of a GPU's memory, and of memory that the GPU and the host share (dlpack.h; do not renumber).
_DEVICE_TYPES = (2, 13)
# The default stream of a device, as the CUDA array interface and DLPack number streams.
DEFAULT_STREAM = 1
# The device of an array whose library does not say which GPU it is on.
SOME_GPU = "gpu"


@dataclass(frozen=True)
class DeviceArray:
    """A C-contiguous array in a GPU's memory.

    stream: the stream on which it may be used. owner: keeps its memory alive. version: a number that changes when the
    owner is changed in place; None: changes are not counted. storage: a tensor's storage, which keeps its memory alive
    even if the tensor is given another (tensor.data = another). borrowed: whether its library may reuse it when the
    call ends, whatever the stream is: true for arrays that name no stream or have only __dlpack__.
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
        """The number of elements."""
        return prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the first axis; of one element for a one-dimensional array."""
        return prod(self.shape[1:]) * self.dtype.itemsize

    def reshaped(self, *shape: int) -> DeviceArray:
        """Return the same memory as an array of another shape."""
        return replace(self, shape=shape)

    def same_contents(self, other: DeviceArray | None) -> bool:
        """Whether this is known to be the same array as `other`, with the same contents.

        The rule is that by which PyTorch's autograd trusts tensors that it saved for backward. tensor.data = another
        changes the address and the storage, not the version; the storage of `other` is kept alive, so no other array
        has its address. resize_() and set_() change the version. Writes through tensor.data, or through another
        library's view, are not counted.
        """
        if other is None or self.version is None:
            return False
        mine, theirs = ((each.version, each.address, each.shape, each.dtype) for each in (self, other))
        return self.owner is other.owner and self.storage is other.storage and mine == theirs

    def view_as(self, dtype: np.dtype[Any]) -> DeviceArray:
        """Return the same memory as an array of another dtype of this size."""
        return replace(self, dtype=dtype)


def device_of(data: Any) -> str | None:
    """Return the device of an array, such as "gpu:0" ("gpu": some GPU); None if it is not on a GPU."""
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
    """Return an array that is on a GPU as a DeviceArray. dtype, shape: None: any. written: whether it will be filled.

    interface: DeviceRows.interface, for arrays that are not tensors. Nothing is converted: raises TypeError for another
    dtype; ValueError for another shape, or for an array that is not C-contiguous or not aligned to its itemsize.
    """
    found, contiguous, writable = _of_tensor(data, what) if is_tensor(data) else _of_interface(data, interface)
    dtype = found.dtype if dtype is None else dtype
    if found.dtype != dtype and not (dtype.name == "bfloat16" and found.dtype == np.dtype("V2")):
        raise TypeError(
            f"{what} must be {dtype.name}, got {found.dtype.name}: arrays on a GPU are not converted; "
            f"pass {what}.astype({dtype.name!r}), or {what}.to(torch.{dtype.name}) for a tensor"
        )
    if shape is not None and found.shape != shape:
        raise ValueError(f"{what} must have shape {shape}, got {found.shape}")
    if not contiguous:
        raise ValueError(
            f"{what} must be C-contiguous on a GPU; pass cupy.ascontiguousarray({what}), or {what}.contiguous() for a "
            "tensor"
        )
    if found.address % dtype.itemsize:
        raise ValueError(f"{what} must be aligned to {dtype.itemsize} bytes on a GPU; pass a copy of it")
    if written and not writable:
        raise ValueError(f"{what} must be writable, got a read-only array")
    return found.view_as(dtype)


def empty_like(
    data: Any, shape: tuple[int, ...], dtype: np.dtype[Any], empty: Callable[[tuple[int, ...], np.dtype[Any]], Any]
) -> Any:
    """Return an uninitialised array for a result, on the device of data. empty: makes a CuPy array.

    It is a PyTorch or CuPy array; once it is filled, in_kind() converts it to an array of the library of data.
    """
    return empty_tensor(data, shape, dtype.name) if is_tensor(data) else empty(shape, dtype)


def in_kind(data: Any, made: Any) -> Any:
    """Return a filled array as an array of the library of data, or of CuPy if that library cannot import it."""
    if is_tensor(made) or type(made) is type(data) or not hasattr(data, "__array_namespace__"):
        return made
    return data.__array_namespace__().from_dlpack(made)


def is_tensor(data: Any) -> bool:
    """Whether this is a PyTorch tensor."""
    return is_of(data, "torch", "Tensor")


def _of_tensor(data: Any, what: str) -> tuple[DeviceArray, bool, bool]:
    torch = sys.modules["torch"]
    if (advice := refusal(torch, data, what)) is not None:
        raise TypeError(f"{what} must be a plain tensor or an array, got a tensor that {advice}")
    name = str(data.dtype).removeprefix("torch.")
    dtype = np.dtype("V2") if name == "bfloat16" else np.dtype(name)
    data = data.resolve_neg()
    address = data.data_ptr() if data.numel() else 0
    # The version by which autograd checks tensors that it saved for backward.
    version = None if data.is_inference() else data._version
    storage = None if version is None else data.untyped_storage()
    found = DeviceArray(address, tuple(data.shape), dtype, stream_of_tensor(data), data, version, storage)
    return found, data.is_contiguous(), True


def _of_interface(data: Any, interface: Callable[[Any], tuple[dict[str, Any], Any]]) -> tuple[DeviceArray, bool, bool]:
    told, owner = interface(data)
    shape, dtype, (address, read_only) = tuple(told["shape"]), np.dtype(told["typestr"]), told["data"]
    strides = told.get("strides")
    expected = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    contiguous = strides is None or not prod(shape) or _steps(shape, strides) == _steps(shape, expected)
    stream = told.get("stream")
    borrowed = stream is None or not hasattr(data, "__cuda_array_interface__")
    found = DeviceArray(int(address or 0), shape, dtype, int(stream or DEFAULT_STREAM), owner, borrowed=borrowed)
    return found, contiguous, not read_only


def _steps(shape: tuple[int, ...], strides: Any) -> list[int]:
    """Return the strides that matter: those of axes longer than 1."""
    return [step for length, step in zip(shape, strides, strict=True) if length > 1]


# Calls of PyTorch.


def gpu_of_tensor(tensor: Any) -> int | None:
    """Return the number of the GPU that a tensor is on, None if it is not on a GPU."""
    return int(tensor.device.index) if tensor.is_cuda else None


def stream_of_tensor(tensor: Any) -> int:
    """Return PyTorch's current stream of the tensor's device. Raises RuntimeError while a CUDA graph is captured."""
    torch = sys.modules["torch"]
    stream = torch.cuda.current_stream(tensor.device)
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "calls on a variable cannot be captured in a CUDA graph, because the GPU tells the host which keys are not "
            "hot; call it before and after the graph, with tensors that the graph reads and writes"
        )
    return int(stream.cuda_stream) or DEFAULT_STREAM


def empty_tensor(tensor: Any, shape: tuple[int, ...], name: str) -> Any:
    """Return an uninitialised tensor on the device of `tensor`. name: the dtype's name."""
    torch: Any = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, name), device=tensor.device)
