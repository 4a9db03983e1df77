"""Import from a PyTorch state dict: one of its matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvemb.installed import pip_install
from kvemb.tools.failures import BadInput
from kvemb.tools.formats.arrays import of_arrays
from kvemb.tools.formats.columns import PathOrFile, Read, SourceOptions, Table
from kvemb.tools.numbers import bfloat16

# A checkpoint has few dicts in each other; a pickle may have a dict in itself.
MAX_DEPTH = 8


def read_torch(source: PathOrFile, given: SourceOptions) -> tuple[Table, Read]:
    """Read a matrix of a PyTorch state dict, also of one in a checkpoint (model.embed.weight), or a tensor alone."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"reading {source} needs PyTorch; install it: {pip_install('torch')}") from error
    try:
        state = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise BadInput(f"{source} is not a PyTorch state dict: {error}") from error
    if isinstance(state, torch.Tensor):
        state = {"weight": state}
    if not isinstance(state, dict):
        raise BadInput(f"{source} holds {type(state).__name__}, not a state dict; save model.state_dict()")
    weights = {name: each for name, each in _flat(state, MAX_DEPTH) if isinstance(each, torch.Tensor)}
    matrices = {name: _Weight(torch, weight, name, source) for name, weight in weights.items() if weight.ndim == 2}
    return of_arrays(source, matrices, {}, given)


def _flat(state: dict[Any, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the values of a dict, and those of dicts in it, under names joined by dots."""
    for name, each in state.items():
        if isinstance(each, dict) and depth:
            yield from ((f"{name}.{inner}", value) for inner, value in _flat(each, depth - 1))
        else:
            yield str(name), each


class _Weight:
    """A matrix as an array of NumPy, of which only the slices that are asked for are read."""

    ndim = 2

    def __init__(self, torch: Any, weight: Any, name: str, source: object) -> None:
        self._torch, self._weight, self._name, self._source = torch, weight.detach(), name, source
        self.shape = tuple(weight.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the numbers. Raises BadInput if the weight is not a dense one of numbers, in this file."""
        _check_weight(self._torch, self._weight, self._name, self._source)
        return bfloat16() if self._is_bfloat16 else np.dtype(_in_numpy(self._weight[:0]).dtype)

    @property
    def _is_bfloat16(self) -> bool:
        return bool(self._weight.dtype == self._torch.bfloat16)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Any:
        part = self._weight[rows].contiguous()
        return part.view(self._torch.int16).numpy().view(bfloat16()) if self._is_bfloat16 else _in_numpy(part)


def _check_weight(torch: Any, weight: Any, name: object, source: object) -> None:
    """Raise BadInput unless a tensor is dense, on the CPU, of a readable dtype, and without overlapping rows."""
    wrong = None
    if weight.is_quantized:
        wrong = "is quantised; save it after dequantize()"
    elif weight.layout != torch.strided or weight.is_nested:
        wrong = "is sparse or nested; save it after to_dense()"
    elif weight.device.type != "cpu":
        wrong = f"has no numbers in this file: it is on the device {str(weight.device)!r}; save it after cpu()"
    elif weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
        wrong = "has rows that share their numbers; save it after contiguous()"
    elif weight.dtype.is_complex or not _readable(weight):
        wrong = f"holds {str(weight.dtype).removeprefix('torch.')}, which no variable can hold; save it as float32"
    if wrong is not None:
        raise BadInput(f"{name!r} of {source} {wrong}")


def _readable(weight: Any) -> bool:
    try:
        _in_numpy(weight[:0].float() if str(weight.dtype) == "torch.bfloat16" else weight[:0])
    except (TypeError, RuntimeError):
        return False
    return True


def _in_numpy(tensor: Any) -> Any:
    """Return a tensor as an array; float8, which NumPy lacks, as float32, which is exact."""
    return (tensor.float() if "float8_" in str(tensor.dtype) else tensor.resolve_neg()).numpy()
