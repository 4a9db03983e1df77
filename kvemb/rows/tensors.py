"""Arguments that are not plain arrays: PyTorch tensors are converted to NumPy arrays of the same numbers, or refused.

Masked arrays and arrays on a GPU are refused. PyTorch and numpy.ma are not imported here; a caller with a tensor or a
masked array has imported them. Thread-safe.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# Float dtypes that NumPy lacks; float32 represents each of their numbers.
_NARROW = ("bfloat16", "float8_")


def plain(data: Any, dtype: np.dtype[Any], what: str) -> Any:
    """Return data; a tensor is returned as an array that shares its memory, if possible.

    dtype: the wanted dtype, which decides how bfloat16 is converted. Raises TypeError for a tensor that requires
    gradients, or whose numbers are not stored plainly in this process's memory; and for a masked array, even one that
    masks nothing, so that no mask is ignored and a call fails in its first batch.
    """
    if is_of(data, "numpy.ma", "MaskedArray"):
        raise TypeError(
            f"{what} must be an array without a mask, got a masked array; pass {what}.compressed(), the elements that "
            f"are not masked, or {what}.filled(number)"
        )
    if not is_of(data, "torch", "Tensor"):
        if hasattr(data, "__cuda_array_interface__"):
            raise TypeError(f"{what} must be in the host's memory here, got an array on a GPU; pass {what}.get()")
        return data
    torch = sys.modules["torch"]
    advice = refusal(torch, data, what)
    if advice is None and data.device.type != "cpu":
        advice = f"is on the device {str(data.device)!r}; pass {what}.cpu()"
    if advice is not None:
        raise TypeError(f"{what} must be a plain tensor or an array, got a tensor that {advice}")
    try:
        name = str(data.dtype).removeprefix("torch.")
        if name == "bfloat16" and dtype.name == "bfloat16":
            return data.contiguous().view(torch.int16).numpy().view(dtype)
        return (data.float() if name.startswith(_NARROW) else data.resolve_neg()).numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{what} must be a tensor that NumPy can read, got {data.dtype}: {error}") from error


def is_of(data: Any, module: str, name: str) -> bool:
    """Whether data is of a class of a module. Another thread may be importing that module: then it is not."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(data, kind)


def refusal(torch: Any, data: Any, what: str) -> str | None:
    """Return a message that says why a tensor is refused and what to pass instead; None: it is not refused."""
    if data.requires_grad:
        meant = "rows.grad or grads.detach()" if what == "grads" else f"{what}.detach()"
        return f"requires gradients; pass {meant}"
    if data.is_quantized:
        return f"is quantised; pass {what}.dequantize()"
    if data.layout != torch.strided or data.is_nested:
        return f"is {'nested' if data.is_nested else 'sparse'}; pass {what}.to_dense()"
    if data.device.type == "meta":
        return "is on the device 'meta', and so has no data; pass a tensor with data"
    return None
