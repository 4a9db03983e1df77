"""What a use does to scores, of rows in their cells and of rows in a block."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import hot_tables_of, rows_of

import kvemb
from kvemb.operations.scoring import Scorer
from kvemb.restrict import ScoreRule
from kvemb.rows.block import DIRTY
from kvemb.tiers.located import Located


def located(hot_tables, keys, cold_rows, exists):
    cells = hot_tables.find(keys, None)
    return Located(keys, None, cells, np.flatnonzero(cells < 0), cold_rows, np.array(exists), np.array(exists))


def test_without_a_policy_uses_are_counted():
    scoring = Scorer(None, hot_tables_of())
    assert scoring.rule is kvemb.FrequencyRestrictPolicy().rule
    assert scoring.first(3) == 1.0, "to make a row is its first use"


def test_uses_of_hot_and_cold_rows_are_recorded_and_of_absent_ones_ignored():
    hot = hot_tables_of()
    list(hot.insert(rows_of([1], score=5.0), None))
    cold = rows_of([2, 3], score=1.0)
    Scorer(None, hot).use(located(hot, np.array([1, 2, 3]), cold, [True, False]), np.array([2, 3, 4]), 0.0)
    cells = hot.find(np.array([1]), None)
    assert hot.scores(cells, None).tolist() == [7.0]
    assert next(iter(hot.read(cells, None))).flags[0] & DIRTY
    assert cold.scores.tolist() == [4.0, 1.0]
    assert cold.flags.tolist() == [DIRTY, 0]


def test_each_occurrence_of_a_hot_key_is_a_use():
    hot = hot_tables_of()
    list(hot.insert(rows_of([1, 2]), None))
    Scorer(None, hot).use_hot(np.array([1, 2, 1, 1]), 0.0)
    assert hot.scores(hot.find(np.array([1, 2]), None), None).tolist() == [3.0, 1.0]


def test_a_policy_that_raises_is_asked_before_anything_changes(monkeypatch):
    class Moody(kvemb.RestrictPolicy):
        def score(self, old_score, count, now):
            if (old_score == 9.0).any():
                raise ArithmeticError
            return old_score + count

    hot = hot_tables_of()
    list(hot.insert(rows_of([1], score=9.0), None))
    scoring = Scorer(Moody(), hot)
    assert scoring.rule is ScoreRule.CUSTOM
    with pytest.raises(ArithmeticError):
        scoring.use_hot(np.array([1]), 0.0)
    assert hot.scores(hot.find(np.array([1]), None), None).tolist() == [9.0]
    cold = rows_of([2], score=9.0)
    with pytest.raises(ArithmeticError):
        scoring.use(located(hot, np.array([2]), cold, [True]), np.array([1]), 0.0)
    assert (cold.scores[0], cold.flags[0]) == (9.0, 0)
    monkeypatch.setattr(Moody, "score", lambda self, old_score, count, now: old_score * np.nan)
    with pytest.raises(ValueError, match="must not return NaN"):
        scoring.use_hot(np.array([1]), 0.0)
