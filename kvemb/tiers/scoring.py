"""What a use does to scores: one policy applied to rows, hot ones in their cells and others in blocks.

The tier's lock guards every method. A policy may be a user's own and may raise: each method asks it before anything
changes.
"""

from __future__ import annotations

import numpy as np

from kvemb.restrict import FrequencyRestrictPolicy, RestrictPolicy, ScoreRule
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.hot_tables import HotTables


class Scoring:
    """A variable's policy over its hot tables.

    Without a policy the hot tier still needs an order to evict by: the number of uses, which does best (DESIGN).
    """

    def __init__(self, policy: RestrictPolicy | None, hot_tables: HotTables) -> None:
        self._policy, self._hot_tables = policy or FrequencyRestrictPolicy(), hot_tables

    @property
    def rule(self) -> ScoreRule:
        """What a kernel may do by itself; CUSTOM: nothing."""
        return self._policy.rule

    def now(self, step: int) -> float:
        """Return the time of a use, by the policy's clock."""
        return self._policy.now(step)

    def first(self, step: int) -> float:
        """Return the score of a row that is made now: making it is its first use."""
        start = np.array([self._policy.initial_score], np.float64)
        return float(self._policy.checked_score(start, np.ones(1, np.int64), self.now(step))[0])

    def use_rows(self, rows: RowBlock, counts: Positions, now: float) -> None:
        """Record counts (n,) uses of rows."""
        if len(rows):
            rows.scores[:] = self._policy.checked_score(rows.scores, counts, now)
            rows.flags |= DIRTY

    def use_hot(self, keys: Keys, counts: Positions | None, now: float) -> None:
        """Record uses of keys that are hot. counts (n,): of distinct keys; None: one for each occurrence."""
        if counts is None:
            distinct = Unique(keys)
            keys, counts = distinct.keys, distinct.counts
        used = []
        for table, places in self._hot_tables.split(keys):
            cells = table.find(keys[places])
            if len(cells):
                scores = self._policy.checked_score(table.block.scores[cells], counts[places], now)
                used.append((table.block, cells, scores))
        for block, cells, scores in used:
            block.scores[cells] = scores
            block.flags[cells] |= DIRTY
