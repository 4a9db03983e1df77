"""Dtypes and schemas by the names of their dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvemb.rows.schema import Schema, SlotShape, dtype_of


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype; for bfloat16 the test is skipped if ml_dtypes is not installed."""
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return dtype_of(name)


def schema_of(name: str = "float32", dim: int = 3, widths: tuple[int, ...] = (3,), key: str = "int64") -> Schema:
    """Return the schema of rows with values of a dtype, and with slots of these widths."""
    slots = tuple(SlotShape(f"slot{at}", width) for at, width in enumerate(widths))
    return Schema(dtype_named(key), dtype_named(name), dim, slots)
