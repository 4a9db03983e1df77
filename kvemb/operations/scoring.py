"""How uses change the scores of rows by the variable's policy, for hot rows in cells and others in blocks.

The variable's lock guards every method. A user-defined policy may raise, so each method calls it before anything
changes.
"""

from __future__ import annotations

import numpy as np

from kvemb.restrict import FrequencyRestrictPolicy, MissingPolicy, RestrictPolicy, ScoreRule, Scores
from kvemb.restrict.policy import checked_score
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Keys, Positions, Unique
from kvemb.tiers.hot_tables import HotTables
from kvemb.tiers.located import Located
from kvemb.tiers.partition import Owners

_ONCE = np.ones(1, np.int64)


class Scorer:
    """A variable's policy over its rows.

    rule: the rule by which kernels record uses; CUSTOM: they do not. records_uses: whether uses change scores; False
    while a user-defined policy is missing.

    Without a policy, rows are scored by their number of uses, because the hot tier needs an order of eviction, and this
    one has the highest hit rate (`kvemb bench hitrate`).
    """

    def __init__(self, policy: RestrictPolicy | None, hot_tables: HotTables) -> None:
        self._policy, self._hot_tables = policy or FrequencyRestrictPolicy(), hot_tables
        self.rule = self._policy.rule
        self.records_uses = not isinstance(self._policy, MissingPolicy)

    def now(self, step: int) -> float:
        """Return the time of a use, by the policy's clock."""
        return self._policy.now(step)

    def min_score(self, step: int) -> float:
        """Return the score below which rows have expired now; -inf: none have."""
        return self._policy.min_score(self.now(step))

    def ranking(self, rows: RowBlock) -> Scores:
        """Return the values by which rows are ranked when the variable is restricted."""
        return self._policy.ranking(rows.scores, rows.embeddings())

    def first(self, step: int) -> float:
        """Return the score of a row created now; its creation counts as its first use."""
        if self.rule is ScoreRule.COUNT:
            return self._policy.initial_score + 1.0
        start = np.array([self._policy.initial_score], np.float64)
        return float(self._used(start, _ONCE, self.now(step))[0])

    def use(self, found: Located, counts: Positions, now: float) -> None:
        """Record counts (n,) uses of located keys, hot or not; missing keys are ignored."""
        there = found.exists.nonzero()[0]
        if len(there):
            used = counts[found.cold[there]]
            found.rows.scores[there] = self._used(found.rows.scores[there], used, now)
            found.rows.flags[there] |= DIRTY
        if len(found.cold) < len(found.keys):
            hot = found.hot
            self._use_cells(found.cells[hot], found.owners_of(hot), counts[hot], now)

    def use_hot(self, keys: Keys, now: float, counts: Positions | None = None) -> None:
        """Record the uses of keys, which are all hot. counts (n,): how many each occurrence is; None: one."""
        distinct = Unique(keys)
        owners = self._hot_tables.owners(distinct.keys)
        self._use_cells(self._hot_tables.find(distinct.keys, owners), owners, distinct.uses(counts), now)

    def _use_cells(self, cells: Positions, owners: Owners, counts: Positions, now: float) -> None:
        """Record counts (n,) uses of the rows in distinct cells."""
        if len(cells):
            scores = self._used(self._hot_tables.scores(cells, owners), counts, now)
            self._hot_tables.set_scores(cells, owners, scores)

    def _used(self, scores: Scores, counts: Positions, now: float) -> Scores:
        """Return scores (n,) after counts (n,) uses."""
        if self.rule is ScoreRule.COUNT:
            return scores + counts
        return checked_score(self._policy, scores, counts, now)
