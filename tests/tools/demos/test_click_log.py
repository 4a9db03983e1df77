"""The generated click log: repeatable, every id shown, skewed, learnable; and the AUC it is judged by."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.demos.click_log import HELD_OUT, ClickLog, auc

LOG = ClickLog(3, 20_000, (9_000, 3_000, 1_000, 1), numbers=2)


def test_a_part_is_the_same_whatever_was_drawn_before() -> None:
    first = LOG.part(8_000, 500)
    LOG.part(0, 100)
    again = ClickLog(3, 20_000, LOG.sizes, 2).part(8_000, 500)
    assert (first.numbers.shape, first.ids.shape, first.clicked.shape) == ((500, 2), (500, 4), (500,))
    for one, other in zip(vars(first).values(), vars(again).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_and_the_held_out_stream_draw_other_lines() -> None:
    numbers = LOG.part(0, 100).numbers
    assert not np.isin(numbers, ClickLog(4, 20_000, LOG.sizes, 2).part(0, 100).numbers).any()
    assert not np.isin(numbers, LOG.part(0, 100, HELD_OUT).numbers).any()


def test_every_id_is_shown_by_the_end_new_ones_all_the_time_and_some_often() -> None:
    ids = LOG.part(0, 20_000).ids
    for field, size in enumerate(LOG.sizes):
        assert np.unique(ids[:, field]).tolist() == list(range(size))
    late = np.unique(ids[17_000:, 0])
    assert len(late[~np.isin(late, ids[:17_000, 0])]) > 300
    assert np.sort(np.bincount(ids[:, 0]))[-100:].sum() > 0.1 * len(ids)


def test_the_hidden_model_ranks_clicks_and_chance_does_not() -> None:
    for log in (LOG, ClickLog(1, 20_000, (2_500, 250))):
        lines = log.part(0, 20_000)
        assert auc(log.logits(lines.ids, lines.numbers), lines.clicked) > 0.75
        assert abs(auc(np.random.default_rng(0).random(20_000), lines.clicked) - 0.5) < 0.02


def test_auc_equals_the_share_of_pairs_in_order() -> None:
    chance = np.random.default_rng(1)
    scores, clicked = chance.integers(0, 5, 200).astype(np.float32), chance.integers(0, 2, 200).astype(np.float32)
    hits, misses = scores[clicked > 0][:, None], scores[clicked == 0][None, :]
    pairs = np.mean((hits > misses) + 0.5 * (hits == misses))
    assert auc(scores, clicked) == pytest.approx(pairs)
    assert np.isnan(auc(scores, np.ones_like(clicked)))
