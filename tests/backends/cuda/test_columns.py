"""Columns of the cells of a table on a GPU, in parts, also where the device has memory for one part of them alone."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_devices import device_of, table_on
from short_device import ShortDevice

from kvemb.backends.cuda.table import CudaTable
from kvemb.rows.block import DIRTY, PENDING, RowBlock
from kvemb.rows.schema import Schema, dtype_of

SCHEMA = Schema(dtype_of("int64"), dtype_of("float32"), 3, ())
KEYS = np.random.default_rng(0).permutation(3000)[:800] - 1500


@pytest.fixture(params=["enough memory", "little memory"])
def table(request: pytest.FixtureRequest) -> CudaTable:
    """Of 16 buckets, with 800 rows, the even keys' dirty; with little memory, of half of the buckets at a time."""
    device_of("cpu")
    device = ShortDevice()
    table = table_on(device, SCHEMA, 16 * 128, 16 * 128)
    rows = RowBlock(SCHEMA, len(KEYS))
    rows.keys[:], rows.scores[:] = KEYS, KEYS * 0.5
    rows.flags[:] = np.where(KEYS % 2 == 0, DIRTY, 0)
    for start in range(0, len(KEYS), 100):
        assert len(table.insert(rows.part(start, start + 100))) == 0
    if request.param == "little memory":
        device.give(0)
    return table


def test_keys_and_scores_are_those_of_the_cells(table: CudaTable) -> None:
    cells = table.find(KEYS)
    np.testing.assert_array_equal(table.keys(cells), KEYS)
    np.testing.assert_array_equal(table.scores(cells[::-1]), KEYS[::-1] * 0.5)
    assert len(table.keys(cells[:0])) == 0


def test_cells_in_use_are_found_in_any_range(table: CudaTable) -> None:
    cells = np.sort(table.find(KEYS))
    np.testing.assert_array_equal(table.occupied(), cells)
    for first, stop in [(0, 1), (100, 900), (128, 256), (700, 700), (1000, 2048)]:
        expected = cells[(cells >= first) & (cells < stop)]
        np.testing.assert_array_equal(table.occupied(first, stop), expected)


def test_flags_are_changed_in_the_cells_that_have_one_of_some_bits(table: CudaTable) -> None:
    cells = table.find(KEYS)
    dirty = KEYS % 2 == 0
    table.change_flags(cells[:300], DIRTY, keep=~0, more=PENDING)
    expected = np.where(dirty, DIRTY, 0) | np.where(dirty & (np.arange(len(KEYS)) < 300), PENDING, 0)
    np.testing.assert_array_equal(table.flags(cells), expected)
    marked = np.concatenate(list(table.flagged(PENDING)))
    np.testing.assert_array_equal(marked, np.sort(cells[:300][dirty[:300]]))
    table.change_flags(None, PENDING, keep=~int(DIRTY))
    np.testing.assert_array_equal(table.flags(cells), np.where(expected & PENDING, PENDING, expected))
