"""Rows are copied whole, and nothing beside them."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.errors import TypingError

from kvemb.backends.cpu_copies import copy_row
from kvemb.kernels.compiling import kernel


@kernel
def copied(to, to_offset, source, offset, nbytes):
    copy_row(to, to_offset, source, offset, nbytes)


@pytest.mark.parametrize(("to_dtype", "dtype"), [("uint8", "uint64"), ("uint64", "uint8")])
def test_a_row_of_any_length_is_copied_and_nothing_beside_it(to_dtype, dtype):
    source = np.random.default_rng(0).integers(1, 100, 3200).astype(np.uint8)
    for nbytes in [*range(140), 255, 256, 400]:
        for to_offset, offset in ((0, 0), (3, 5), (17, 1)):
            to = np.zeros(800, np.uint8)
            expected = to.copy()
            expected[to_offset : to_offset + nbytes] = source[offset : offset + nbytes]
            copied(to.view(to_dtype).reshape(4, -1), to_offset, source.view(dtype), offset, nbytes)
            np.testing.assert_array_equal(to, expected)


def test_rows_that_are_not_contiguous_do_not_compile():
    rows = np.zeros((4, 4), np.float32)
    for to, source in ((rows.T, rows), (rows, rows[:, ::2])):
        with pytest.raises(TypingError):
            copied(to, 0, source, 0, 4)
