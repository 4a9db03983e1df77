"""A PyTorch state dict, to be imported: one of its matrices, whose rows' numbers are the keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput, WrongUsage
from kvemb.tools.formats.columns import KEY, VALUE, Batch, Column, Given, Place, Table, check_width, rows_at_once
from kvemb.tools.numbers import bfloat16

READ_ROWS = 65_536


def read_state_dict(place: Place, given: Given) -> tuple[Table, Iterator[Batch]]:
    """Read a weight of a PyTorch state dict, the one that is named or the only one; a row's key is its number."""
    try:
        import torch
    except ImportError as error:
        raise BadInput(f"reading {place} needs PyTorch; install it: pip install 'kvemb[torch]'") from error
    try:
        state = torch.load(place, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise BadInput(f"{place} is not a PyTorch state dict: {error}") from error
    if not isinstance(state, dict):
        raise BadInput(f"{place} holds {type(state).__name__}, not a state dict; save model.state_dict()")
    found = {name: each for name, each in state.items() if isinstance(each, torch.Tensor) and each.ndim == 2}
    alone = next(iter(found)) if len(found) == 1 else None
    name = alone if given.value_column is None else given.value_column
    if name not in found:
        known = ", ".join(map(str, found)) or "(none)"
        raise WrongUsage(f"{place} has the matrices {known}; name one with --value-column")
    weight = found[name].detach()
    _check_weight(torch, weight, name, place)
    bits = weight.dtype == torch.bfloat16
    dtype = bfloat16() if bits else _in_numpy(weight[:0]).dtype
    width = check_width(weight.shape[1], place)
    step = rows_at_once(width * dtype.itemsize, READ_ROWS)

    def batches() -> Iterator[Batch]:
        for at in range(0, len(weight), step):
            part = weight[at : at + step].contiguous()
            values = part.view(torch.int16).numpy().view(dtype) if bits else _in_numpy(part)
            yield {KEY: np.arange(at, at + len(part)), VALUE: values}

    return Table([Column(KEY, np.dtype(np.int64)), Column(VALUE, dtype, width)], len(weight)), batches()


def _check_weight(torch: Any, weight: Any, name: object, place: object) -> None:
    """Raise BadInput unless a tensor's numbers are all there, each in a place of its own."""
    wrong = None
    if weight.is_quantized:
        wrong = "is quantised; save it after dequantize()"
    elif weight.layout != torch.strided or weight.is_nested:
        wrong = "is sparse or nested; save it after to_dense()"
    elif weight.device.type != "cpu":
        wrong = f"has no numbers, on the device {str(weight.device)!r}"
    elif weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
        wrong = "has rows that share their numbers; save it after contiguous()"
    elif weight.dtype.is_complex or not _readable(weight):
        wrong = f"holds {str(weight.dtype).removeprefix('torch.')}, which no variable can; save it as float32"
    if wrong is not None:
        raise BadInput(f"{name!r} of {place} {wrong}")


def _readable(weight: Any) -> bool:
    try:
        _in_numpy(weight[:0].float() if str(weight.dtype) == "torch.bfloat16" else weight[:0])
    except (TypeError, RuntimeError):
        return False
    return True


def _in_numpy(tensor: Any) -> Any:
    """A tensor as an array; float8, which NumPy does not know, as float32, which holds each number of it."""
    return (tensor.float() if "float8_" in str(tensor.dtype) else tensor.resolve_neg()).numpy()
