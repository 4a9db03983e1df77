"""Lengths that nothing overflows, and bfloat16 to float32 and back."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.numbers import bfloat16, lengths, narrow, unit, widen


def test_lengths_and_unit_rows_are_right_at_any_size():
    rows = np.array([[3e200, 4e200], [3e-200, 4e-200], [0, 0], [-3, 4]])
    np.testing.assert_allclose(lengths(rows), [5e200, 5e-200, 0, 5])
    np.testing.assert_allclose(unit(rows), [[0.6, 0.8], [0.6, 0.8], [0, 0], [-0.6, 0.8]])
    assert lengths(np.full((1, 2), 1.7e308)).tolist() == [np.inf]
    assert unit(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_every_bfloat16_comes_back():
    pytest.importorskip("ml_dtypes")
    every = np.arange(2**16, dtype=np.uint16)
    wide = widen(every.view(bfloat16()))
    assert wide.dtype == np.float32
    assert (narrow(wide).view(np.uint16) == every).all()
