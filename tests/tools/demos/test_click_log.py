"""The generated click log: repeatable, skewed, drifting, learnable; and the AUC it is judged by."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.demos.click_log import HELD_OUT, ClickLog, Population, auc

LOG = ClickLog(seed=3, lines=40_000)


def test_a_part_is_the_same_whatever_was_drawn_before() -> None:
    first = LOG.part(8_000, 1_000)
    LOG.part(0, 500)
    again = ClickLog(seed=3, lines=40_000).part(8_000, 1_000)
    for one, other in zip(vars(first).values(), vars(again).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_and_the_held_out_stream_draw_other_lines() -> None:
    training = LOG.part(0, 1_000)
    assert np.mean(training.users == ClickLog(4, 40_000).part(0, 1_000).users) < 0.01
    assert np.mean(training.users == LOG.part(0, 1_000, HELD_OUT).users) < 0.05


def test_ids_use_all_64_bits_and_are_apart() -> None:
    users = LOG.part(0, 5_000).users
    assert users.dtype == np.int64
    assert 0.4 < np.mean(users < 0) < 0.6
    assert np.abs(users).max() > 2**62
    part = LOG.part(0, 20_000)
    assert not np.intersect1d(part.users, part.items).size, "ids of users and items do not meet"


def test_new_ids_arrive_until_the_end() -> None:
    seen = LOG.part(0, 39_000).users
    last = LOG.part(39_000, 1_000).users
    fresh = np.unique(last[~np.isin(last, seen)])
    assert len(fresh) > 0.03 * len(last)


def test_a_few_items_are_max_of_the_log() -> None:
    _, counts = np.unique(LOG.part(0, 20_000).items, return_counts=True)
    counts = np.sort(counts)[::-1]
    assert counts[: len(counts) // 10].sum() > 0.4 * counts.sum()


def test_popularity_drifts() -> None:
    def favourites(start: int) -> set[int]:
        ids, counts = np.unique(LOG.part(start, 5_000).items, return_counts=True)
        return set(ids[np.argsort(counts)[-30:]].tolist())

    assert len(favourites(0) & favourites(1_000)) > len(favourites(0) & favourites(35_000))


def test_a_population_of_one_is_drawn_from() -> None:
    lonely = Population(salt=1, at_start=1, arrivals=0.0, zipf=0.7, tenure=1)
    drawn = lonely.draw(np.arange(100), np.random.default_rng(0))
    assert len(np.unique(drawn)) == 1


def test_the_hidden_model_ranks_clicks_and_chance_does_not() -> None:
    part = LOG.part(0, 20_000)
    assert auc(LOG.logits(part.users, part.items), part.clicked) > 0.75
    assert abs(auc(np.random.default_rng(0).random(20_000), part.clicked) - 0.5) < 0.02


def test_auc_equals_the_share_of_pairs_in_order() -> None:
    chance = np.random.default_rng(1)
    scores, clicked = chance.integers(0, 5, 200).astype(np.float32), chance.integers(0, 2, 200).astype(np.float32)
    hits, misses = scores[clicked > 0][:, None], scores[clicked == 0][None, :]
    pairs = np.mean((hits > misses) + 0.5 * (hits == misses))
    assert auc(scores, clicked) == pytest.approx(pairs)


@pytest.mark.parametrize("kind", [0.0, 1.0])
def test_auc_of_lines_all_of_one_kind_is_nan(kind: float) -> None:
    assert np.isnan(auc(np.arange(3.0), np.full(3, kind, np.float32)))
