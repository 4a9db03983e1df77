"""The generated log of many fields: repeatable, every id shown, skewed, learnable."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.demos.click_log import HELD_OUT, auc
from kvemb.tools.demos.field_log import FIELDS, NUMBERS, FieldLog

LOG = FieldLog(seed=3, lines=20_000)


def test_a_part_is_the_same_whatever_was_drawn_before() -> None:
    first = LOG.part(8_000, 500)
    LOG.part(0, 100)
    again = FieldLog(3, 20_000).part(8_000, 500)
    assert (first.numbers.shape, first.ids.shape, first.clicked.shape) == ((500, NUMBERS), (500, FIELDS), (500,))
    for one, other in zip(vars(first).values(), vars(again).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_and_the_held_out_stream_draw_other_lines() -> None:
    numbers = LOG.part(0, 100).numbers
    assert not np.isin(numbers, FieldLog(4, 20_000).part(0, 100).numbers).any()
    assert not np.isin(numbers, LOG.part(0, 100, HELD_OUT).numbers).any()


@pytest.mark.parametrize("lines", [1, 2, 3, 1000, 20_000])
def test_every_id_of_every_field_is_shown_by_the_end(lines: int) -> None:
    log = FieldLog(1, lines)
    ids = log.part(0, lines).ids
    for field, size in enumerate(log.sizes):
        shown = np.unique(ids[:, field])
        assert shown.min() >= 0
        assert shown.max() < size
        assert len(shown) == size or lines < 4


def test_some_ids_are_popular() -> None:
    _, counts = np.unique(LOG.part(0, 20_000).ids[:, 0], return_counts=True)
    assert np.sort(counts)[-100:].sum() > 0.1 * counts.sum()


def test_the_hidden_model_ranks_clicks() -> None:
    lines = LOG.part(0, 20_000)
    assert auc(LOG.logits(lines.numbers, lines.ids), lines.clicked) > 0.8
    assert 0.2 < lines.clicked.mean() < 0.5
