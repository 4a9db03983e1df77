"""The policy that removes the least recently used rows first (LRU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvemb.restrict.policy import Counts, RestrictPolicy, ScoreRule, Scores, check_clock


@dataclass(frozen=True)
class TimestampRestrictPolicy(RestrictPolicy):
    """The score is the time of the last use: least recently used rows are evicted first.

    clock: "seconds" (since 1970, so it continues after a restart) or "steps", calls that recorded uses. RestrictPolicy
    says what counts as a use. The clock of a stored variable cannot change.
    """

    kind: ClassVar[str] = "timestamp"

    clock: str = "seconds"

    def __post_init__(self) -> None:
        check_clock(self)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return `now` for every row."""
        return np.full_like(old_score, now)

    @property
    def rule(self) -> ScoreRule:
        """LAST_USE, unless a subclass has a score of its own."""
        return ScoreRule.LAST_USE if type(self).score is TimestampRestrictPolicy.score else ScoreRule.CUSTOM

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the clock; of a subclass, its class by name."""
        if type(self) is not TimestampRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "clock": self.clock}
