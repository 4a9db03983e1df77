"""Rows are copied whole, and nothing beside them."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from kvemb.backends.cpu_copies import copy_row
from kvemb.kernels.compiling import kernel


@kernel
def copied(to, to_offset, source, offset, count):
    copy_row(to, to_offset, source, offset, count)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "float64", "uint64"])
def test_a_row_of_any_length_is_copied_and_nothing_beside_it(dtype):
    source = np.random.default_rng(0).integers(1, 100, 400).astype(dtype)
    for count in [*range(70), 127, 128, 200]:
        for to_offset, offset in ((0, 0), (3, 5), (17, 1)):
            to = np.zeros((4, 100), dtype)
            expected = to.copy()
            expected.reshape(-1)[to_offset : to_offset + count] = source[offset : offset + count]
            copied(to, to_offset, source, offset, count)
            np.testing.assert_array_equal(to, expected)


def test_other_memory_than_rows_of_one_dtype_does_not_compile():
    rows = np.zeros((4, 4), np.float32)
    for to, source in ((rows.T, rows), (rows, rows[:, ::2]), (rows, rows.astype(np.float64))):
        with pytest.raises(TypingError):
            copied(to, 0, source, 0, 4)
