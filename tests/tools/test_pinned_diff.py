"""Regression tests: every bug found in comparing two checkpoints."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.diff import diff
from kvemb.tools.export import export
from kvemb.tools.failures import BadInput
from kvemb.tools.inspect import peek
from tests.tools.test_pinned_tools import make


def test_more_than_a_hundred_rows_that_moved_are_named(tmp_path):
    for name, offset in (("a", 0), ("b", 1)):
        make(tmp_path / name, np.arange(1000), np.arange(offset, 1000 + offset, dtype=np.float32).reshape(-1, 1))
    assert len(diff(tmp_path / "a", tmp_path / "b", top=500)[0].most) == 500


@pytest.mark.slow
def test_rows_that_became_nan_stand_first_among_those_that_moved_max_and_hide_no_other(tmp_path):
    rows = np.full((40, 1), 1.5, np.float32)
    rows[[5, 30], 0], rows[31:34, 0], rows[39, 0], rows[38, 0] = np.nan, [1000, 2000, 3000], 9000, np.inf
    make(tmp_path / "a", np.arange(40), np.ones((40, 1), np.float32))
    make(tmp_path / "b", np.arange(40), rows)
    for one, other in (("a", "b"), ("b", "a")):
        for top in range(9):
            # Several batches, each with rows to be named.
            (found,) = diff(tmp_path / one, tmp_path / other, top=top, batch_rows=7)
            assert [each.key for each in found.most] == [5, 30, 38, 39, 33, 32, 31, 0, 1][:top]


def test_how_far_great_and_tiny_rows_moved(tmp_path):
    make(tmp_path / "a", [1, 2, 3], np.array([[1e200, 1e200], [1e-200, 1e-200], [1, 1]]))
    make(tmp_path / "b", [1, 2, 3], np.array([[1e200, 2e200], [1e-200, 3e-200], [1, 1]]))
    (found,) = diff(tmp_path / "a", tmp_path / "b")
    assert [each.key for each in found.most] == [1, 2]
    np.testing.assert_allclose([each.l2 for each in found.most], [1e200, 2e-200], rtol=1e-12)
    np.testing.assert_allclose([each.cosine for each in found.most], [3 / np.sqrt(10), 4 / np.sqrt(20)])
    assert found.l2.counts == [0] * 7 + [1, 1]


def test_a_row_with_a_nan_or_an_infinity_has_no_direction(tmp_path):
    rows = np.array([[3, 4], [np.nan, 1], [np.inf, 1], [0, 0], [4, 3]], np.float32)
    make(tmp_path / "store", np.arange(5), rows)
    export(tmp_path / "store", tmp_path / "unit.npy", normalize=True)
    nan = np.nan
    expected = [[0.6, 0.8], [nan, nan], [nan, nan], [0, 0], [0.8, 0.6]]
    np.testing.assert_allclose(np.load(tmp_path / "unit.npy" / "value.npy"), expected, rtol=1e-6)
    with pytest.raises(BadInput, match="the row of key 1 has a NaN or an infinity"):
        export(tmp_path / "store", tmp_path / "int8.npy", normalize=True, dtype="int8")
    found = peek(tmp_path / "store", neighbours=4).neighbours
    assert [key for key, _ in found[0]] == [4, 3]
    assert found[1] == found[2] == []
