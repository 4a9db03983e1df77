"""The policy that removes the least recently used rows first (LRU)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_choice
from kvemb.restrict.policy import CLOCKS, Counts, RestrictPolicy, ScoreRule, Scores


@dataclass(frozen=True)
class TimestampRestrictPolicy(RestrictPolicy):
    """The score is the time of the last use: least recently used rows are evicted first.

    Follows ``tfra.dynamic_embedding.TimestampRestrictPolicy``, which counts seconds.

    RestrictPolicy defines a use. A use never lowers a score: if the machine's clock goes back, rows keep their scores
    until it has caught up. The clock of a stored variable cannot change.

    Args:
        clock: "seconds" since 1970, so that it continues after a restart, or "steps": calls that recorded uses.
            Default: 'seconds'.

    Raises:
        ValueError: clock is unknown.
    """

    kind = "timestamp"
    _rule = ScoreRule.LAST_USE

    clock: str = accepts(as_choice, "seconds", among=CLOCKS)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return `now` for every row, or its old score if that is higher."""
        return np.maximum(old_score, now)
