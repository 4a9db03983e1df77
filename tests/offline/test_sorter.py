"""Sorting more rows than memory holds: the same as sorting them at once; the last of equal keys wins."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of

from kvemb.limits import Limits
from kvemb.offline.sorter import Sorter


@pytest.mark.parametrize("sort_bytes", [1, 2000, 64 << 20])
@pytest.mark.parametrize("ascending", [True, False])
def test_rows_come_back_in_order_and_the_last_of_equal_keys_wins(tmp_path, sort_bytes, ascending):
    chance = np.random.default_rng(3)
    sorter, expected = Sorter(SCHEMA, tmp_path, Limits(sort_bytes=sort_bytes, scan_rows=7)), {}
    for version in range(40):
        keys = chance.choice(np.arange(-300, 300), 20, replace=False) + 1000 * version * ascending
        given = rows_of(np.sort(keys) if ascending else keys, version, score=version / 2, flags=1)
        given.steps[:] = version
        sorter.add(given)
        given.words[:] = given.steps[:] = 0  # the caller uses the memory again
        expected |= dict.fromkeys(keys.tolist(), version)
    blocks = list(sorter.blocks())
    assert max(map(len, blocks)) <= 7
    assert [key for block in blocks for key in block.keys.tolist()] == sorted(expected)
    for block in blocks:
        assert not block.flags.any()
        versions = [expected[key] for key in block.keys.tolist()]
        assert block.values[:, 1].tolist() == block.steps.tolist() == (2 * block.scores).tolist() == versions
    assert bool(list(tmp_path.glob("*.run"))) == (sort_bytes < 64 << 20)


def test_no_rows_give_none(tmp_path):
    assert list(Sorter(SCHEMA, tmp_path).blocks()) == []
