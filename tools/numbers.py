"""What is done to the numbers of rows: their lengths, fewer digits, and bfloat16, which few formats know."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.tools.failures import BadInput


def lengths(values: Any) -> Any:
    """Return the length of each row of values (n, dim), float64 (n,): infinite, or NaN, where a number of it is."""
    most, _, norms = _scaled(values)
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(most), most * norms, most)


def unit(values: Any) -> Any:
    """Return rows (n, dim) as float64 of length 1, rows of zeros as they are.

    A row with a NaN or an infinity has no direction: it is NaN throughout.
    """
    _, scaled, norms = _scaled(values)
    return np.divide(scaled, norms[:, None], out=scaled, where=norms[:, None] > 0)


def _scaled(values: Any) -> tuple[Any, Any, Any]:
    """Return each row's greatest magnitude (n,), the row divided by it (n, dim), and the length of that (n,).

    So no square overflows, nor becomes zero. Where a number is not finite, the second and the third are NaN.
    """
    wide = values.astype(np.float64)
    most = np.max(np.abs(wide), axis=1, initial=0.0)
    finite = np.isfinite(most)[:, None]
    scaled = np.divide(wide, most[:, None], out=np.zeros_like(wide), where=finite & (most[:, None] > 0))
    scaled[~finite[:, 0]] = np.nan
    return most, scaled, np.linalg.norm(scaled, axis=1)


def rounded(values: Any, dtype: np.dtype[Any], keys: Any, advice: str) -> Any:
    """Return values (n, dim) of keys (n,) in a dtype of floats. What is infinite or NaN stays so.

    Raises BadInput, ending with advice, where a finite number would become infinite.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        changed = values.astype(dtype)
    lost = np.isinf(changed) & np.isfinite(values)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        number = float(values[row, column])
        raise BadInput(f"key {keys[row]} has the number {number:g}, too great for {dtype.name}; {advice}")
    return changed


def bfloat16() -> np.dtype[Any]:
    """Return the dtype that numpy itself does not have."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a dtype by its name."""
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def widen(array: Any) -> Any:
    """Return bfloat16 numbers as float32, bit for bit: NaNs too."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrow(array: Any) -> Any:
    """Return what widen() was given."""
    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(bfloat16())
