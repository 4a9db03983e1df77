"""Arrays that stand for those in a GPU's memory when tests run its kernels on the CPU, in the host's memory.

They have __cuda_array_interface__, as CuPy's arrays have, or only __dlpack__. NumPy cannot read them, so that tests
notice an array that is copied to the host unnecessarily.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OTHER_STREAM = 4242


class ArrayOnDevice:
    """An array like CuPy's. stream: the one on which it may be used."""

    def __init__(self, array: Any, *, stream: int = OTHER_STREAM, gpu: int = 0) -> None:
        self.array, self._stream, self._gpu = array, stream, gpu

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.array.__array_interface__
        typestr = "<V2" if self.array.dtype.name == "bfloat16" else told["typestr"]
        told = {"shape": told["shape"], "typestr": typestr, "data": told["data"], "strides": told["strides"]}
        return {**told, "version": 3, "stream": self._stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._gpu

    def sum(self) -> Any:
        return self.array.sum()

    @property
    def shape(self) -> Any:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array on a GPU was converted implicitly")


class DlpackOnly:
    """An array of a library that supports only DLPack. asked: the streams that consumers named."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked.append(stream)
        return stream

    @staticmethod
    def __array_namespace__() -> Any:
        return DlpackOnly

    @staticmethod
    def from_dlpack(given: Any) -> DlpackOnly:
        return DlpackOnly(given.array)


def there(array: Any, dtype: Any = None, *, stream: int = OTHER_STREAM) -> ArrayOnDevice:
    """Return a copy of an array as an ArrayOnDevice."""
    return ArrayOnDevice(np.array(array, dtype), stream=stream)


class OnGpu:
    """A variable whose arguments and results are all arrays on its GPU."""

    def __init__(self, variable: Any) -> None:
        self._variable = variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._variable, name)

    def lookup(self, keys: Any, return_exists: bool = False, **how: Any) -> Any:
        found: Any = self._variable.lookup(there(keys), return_exists, **how)
        return (found[0].array, found[1].array) if return_exists else found.array

    def upsert(self, *arrays: Any) -> None:
        self._variable.upsert(*map(there, arrays))

    def accum(self, *arrays: Any) -> None:
        self._variable.accum(*map(there, arrays))

    def apply_gradients(self, *arrays: Any) -> None:
        self._variable.apply_gradients(*map(there, arrays))

    def remove(self, keys: Any) -> None:
        self._variable.remove(there(keys))

    def prefetch(self, keys: Any, **how: Any) -> None:
        self._variable.prefetch(there(keys), **how)
