"""Import from a PyTorch state dict: one of its matrices; the keys are the row numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvemb.installed import pip_install
from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import KEY, VALUE, Batch, Column, PathOrFile, SourceOptions, Table, check_width, slices
from kvemb.tools.numbers import bfloat16


def read_torch(source: PathOrFile, given: SourceOptions) -> tuple[Table, Iterator[Batch]]:
    """Read a matrix of a PyTorch state dict: the named one, or the only one. The key of a row is its number."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"reading {source} needs PyTorch; install it: {pip_install('torch')}") from error
    try:
        state = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise BadInput(f"{source} is not a PyTorch state dict: {error}") from error
    if not isinstance(state, dict):
        raise BadInput(f"{source} holds {type(state).__name__}, not a state dict; save model.state_dict()")
    found = {name: each for name, each in state.items() if isinstance(each, torch.Tensor) and each.ndim == 2}
    only = next(iter(found)) if len(found) == 1 else None
    name = only if given.value_column is None else given.value_column
    if name not in found:
        known = ", ".join(map(str, found)) or "(none)"
        raise WrongUsage(f"{source} has the matrices {known}; name one with --value-column")
    weight = found[name].detach()
    _check_weight(torch, weight, name, source)
    is_bfloat16 = weight.dtype == torch.bfloat16
    dtype = bfloat16() if is_bfloat16 else _in_numpy(weight[:0]).dtype
    width = check_width(weight.shape[1], source)

    def batches() -> Iterator[Batch]:
        for rows in slices(len(weight), width * dtype.itemsize):
            part = weight[rows].contiguous()
            values = part.view(torch.int16).numpy().view(dtype) if is_bfloat16 else _in_numpy(part)
            yield {KEY: np.arange(rows.start, rows.stop), VALUE: values}

    return Table([Column(KEY, np.dtype(np.int64)), Column(VALUE, dtype, width)], len(weight)), batches()


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
