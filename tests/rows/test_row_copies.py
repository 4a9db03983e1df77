"""Rows are copied bit for bit to where they belong, and nothing else is touched."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from blocks import SCHEMA

from kvemb.rows.block import RowBlock
from kvemb.rows.row_copies import copy_rows, spread


def block_of(count: int, seed: int) -> RowBlock:
    block, chance = RowBlock(SCHEMA, count), np.random.default_rng(seed)
    for column in (block.keys, block.scores, block.steps, block.flags, block.words):
        column[...] = chance.integers(0, 200, column.shape)
    return block


def test_rows_are_copied_with_all_columns_and_the_others_stay():
    source, into, before = block_of(9, 1), block_of(7, 2), block_of(7, 2)
    at, to = np.array([8, 0, 0]), np.array([1, 6, 2])
    copy_rows(source, at, into, to)
    for name in ("keys", "scores", "steps", "flags", "words"):
        expected = getattr(before, name).copy()
        expected[to] = getattr(source, name)[at]
        np.testing.assert_array_equal(getattr(into, name), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_rows_are_spread_in_every_dtype_and_to_views(dtype):
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    for out in (np.zeros((5, 3), dtype), np.zeros((5, 6), dtype)[:, ::2]):
        expected = out.copy()
        at, to = np.array([3, 3, 0]), np.array([0, 4, 2])
        expected[to] = rows[at]
        spread(rows, at, out, to)
        np.testing.assert_array_equal(out, expected)


def test_bits_that_are_no_number_are_kept():
    rows = np.array([[0x7FA00001, 0xFFC12345]], np.uint32).view(np.float32)
    out = np.zeros((1, 2), np.float32)
    spread(rows, np.array([0]), out, np.array([0]))
    assert out.view(np.uint32).tolist() == rows.view(np.uint32).tolist()
