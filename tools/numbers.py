"""Arithmetic on rows: norms, bytes, rounding to narrower dtypes, and bfloat16, which few formats support."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput


def lengths(values: Any) -> Any:
    """Return the L2 norm of each row of values (n, dim), float64 (n,); infinite or NaN if the row has such a number."""
    largest, _, norms = _scaled(values)
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(largest), largest * norms, largest)


def unit(values: Any) -> Any:
    """Return rows (n, dim) as float64, scaled to norm 1; rows of zeros stay zeros.

    A row with a NaN or an infinity has no direction and becomes NaN in every column.
    """
    _, scaled, norms = _scaled(values)
    return np.divide(scaled, norms[:, None], out=scaled, where=norms[:, None] > 0)


def _scaled(values: Any) -> tuple[Any, Any, Any]:
    """Return each row's largest magnitude (n,), the row divided by it (n, dim), and the norm of that (n,).

    The division keeps squares from overflowing or underflowing. Rows that are not finite give NaN in the last two.
    """
    wide = values.astype(np.float64)
    largest = np.max(np.abs(wide), axis=1, initial=0.0)
    finite = np.isfinite(largest)[:, None]
    scaled = np.divide(wide, largest[:, None], out=np.zeros_like(wide), where=finite & (largest[:, None] > 0))
    scaled[~finite[:, 0]] = np.nan
    return largest, scaled, np.linalg.norm(scaled, axis=1)


def row_bytes(array: Any) -> Any:
    """Return the bytes of each row of an array (n,) or (n, width), uint8 (n, bytes). It may share memory."""
    whole = np.ascontiguousarray(array)
    return whole.reshape(len(whole), math.prod(whole.shape[1:])).view(np.uint8)


def rounded(values: Any, dtype: np.dtype[Any], keys: Any, advice: str) -> Any:
    """Return values (n, dim) of keys (n,) in a float dtype. Infinities and NaNs are kept.

    Raises BadInput, its message ending with advice, if a finite number would become infinite.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        changed = values.astype(dtype)
    lost = np.isinf(changed) & np.isfinite(values)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        number = float(values[row, column])
        raise BadInput(f"key {keys[row]} has the number {number:g}, too large for {dtype.name}; {advice}")
    return changed


def bfloat16() -> np.dtype[Any]:
    """Return the bfloat16 dtype of ml_dtypes, which NumPy itself does not have."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, "bfloat16" included."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def widen(array: Any) -> Any:
    """Return bfloat16 numbers as float32; narrow() restores the same bits, also of NaNs."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(array: Any) -> Any:
    """Undo widen()."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(bfloat16())
