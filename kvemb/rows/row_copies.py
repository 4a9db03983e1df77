"""Copying rows between blocks, and from blocks to results, without a temporary copy.

NumPy would first gather them in a temporary array. The kernels are loaded at first use. Callers hold the locks.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Positions

# By the bytes of an element: numba has no 16-bit floats, and only the bits matter.
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


@cache
def _kernels() -> ModuleType:
    from kvemb.rows import row_kernels

    return row_kernels


def copy_rows(source: RowBlock, at: Positions, into: RowBlock, to: Positions) -> None:
    """Overwrite rows `to` (n,) of into with rows `at` (n,) of source, keys included."""
    _kernels().copy_rows(*source.columns, at, *into.columns, to)


def spread(rows: npt.NDArray[Any], at: Positions, out: npt.NDArray[Any], to: Positions) -> None:
    """Overwrite rows `to` (n,) of out (·, dim) with rows `at` (n,) of rows (·, dim), of the same dtype."""
    seen = _BITS[out.dtype.itemsize]
    _kernels().spread(rows.view(seen), at, out.view(seen), to)
