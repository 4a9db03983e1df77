"""Arrays that stand for those in a GPU's memory where tests run its kernels on the CPU: "device memory" is the host's.

They have what CuPy's arrays have by __cuda_array_interface__, or __dlpack__ alone. NumPy cannot read them, so an array
that is brought to the host unasked shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OTHER_STREAM = 4242


class ArrayOnDevice:
    """An array as CuPy's are. stream: on which it may be used."""

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

    @property
    def shape(self) -> Any:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array on a GPU was converted implicitly")


class DlpackOnly:
    """An array of a library that has DLPack alone. asked: the streams that consumers named."""

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
    """Return a copy of an array, as one on the GPU."""
    return ArrayOnDevice(np.array(array, dtype), stream=stream)
