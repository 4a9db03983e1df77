"""The policy that removes the least recently used rows first (LRU)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvemb.restrict.policy import Counts, RestrictPolicy, ScoreRule, Scores, check_clock


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

    kind: ClassVar[str] = "timestamp"

    clock: str = "seconds"

    def __post_init__(self) -> None:
        check_clock(self)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return `now` for every row, or its old score if that is higher."""
        return np.maximum(old_score, now)

    @property
    def rule(self) -> ScoreRule:
        """LAST_USE, unless a subclass overrides score."""
        return ScoreRule.LAST_USE if type(self).score is TimestampRestrictPolicy.score else ScoreRule.CUSTOM

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the clock; for a subclass, the name of its class."""
        if type(self) is not TimestampRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "clock": self.clock}
