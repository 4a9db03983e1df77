"""The exact limit: the same as sorting, whatever the scores and however small the blocks."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvemb.errors import ColdStoreError
from kvemb.operations import selection
from kvemb.operations.selection import BLOCK_PAIRS, ScoreSpool, lowest_kept, order_scores

SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -math.inf, math.inf, 5e-324, -5e-324]),
    st.floats(allow_nan=False),
    st.integers(-3, 3).map(float),
)
KEYS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20), st.integers(2**63 - 5, 2**63 + 5))
PAIRS = st.lists(st.tuples(SCORES, KEYS), unique_by=lambda pair: pair[1], max_size=80)


def dropped(pairs, keep, batch=7, block_pairs=BLOCK_PAIRS):
    """The keys below the limit, by a spool that takes the pairs in batches."""
    with closing(ScoreSpool(block_pairs=block_pairs)) as spool:
        for at in range(0, len(pairs), batch):
            part = pairs[at : at + batch]
            scores, keys = [score for score, _ in part], [key for _, key in part]
            spool.append(np.array(scores, np.float64), np.array(keys, np.uint64))
        return [int(key) for batch in below_highest(spool, keep, block_pairs) for key in batch]


def below_highest(spool, keep, block_pairs=BLOCK_PAIRS):
    """The keys of all pairs of a spool but the `keep` highest, in batches, as restricting finds them."""
    if keep >= len(spool):
        return []
    limit = lowest_kept(spool.counts, spool.matching, keep, max_pairs=block_pairs) if keep else None
    return list(spool.below(limit))


@given(st.lists(SCORES, max_size=50))
def test_ordered_scores_compare_as_scores_do(scores):
    ordered = order_scores(np.array(scores, np.float64)).tolist()
    for a, x in zip(scores, ordered, strict=True):
        for b, y in zip(scores, ordered, strict=True):
            assert (a < b, a == b) == (x < y, x == y)


@pytest.mark.parametrize("block_pairs", [1, 4, 1 << 18])
def test_the_limit_is_what_sorting_gives(block_pairs):
    @given(PAIRS, st.integers(0, 90))
    @settings(max_examples=60, deadline=None)
    def check(pairs, keep):
        ranked = sorted(pairs, key=lambda pair: (pair[0] + 0.0, pair[1]))
        expected = [key for _, key in ranked[: max(0, len(pairs) - keep)]]
        assert sorted(dropped(pairs, keep, block_pairs=block_pairs)) == sorted(expected)

    check()


def test_keys_come_in_the_order_they_were_spooled():
    pairs = [(float(score), key) for key, score in enumerate([3, 1, 2, 0, 5])]
    assert dropped(pairs, 2) == [1, 2, 3]


def test_a_spool_leaves_no_file(tmp_path):
    with closing(ScoreSpool(tmp_path)) as spool:
        spool.append(np.ones(3), np.arange(3, dtype=np.uint64))
        assert list(tmp_path.iterdir()) == []
        assert len(below_highest(spool, 1)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_a_cold_store_error(monkeypatch, tmp_path):
    def full(dir: Path) -> Any:
        return open("/dev/full", "r+b", buffering=0)

    with pytest.raises(ColdStoreError, match="nowhere"):
        ScoreSpool(tmp_path / "nowhere")
    monkeypatch.setattr(selection.tempfile, "TemporaryFile", full)
    with closing(ScoreSpool(tmp_path)) as spool, pytest.raises(ColdStoreError, match="No space left"):
        spool.append(np.ones(4), np.arange(4, dtype=np.uint64))
