"""The policy of rows that expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from kvemb.checks.numeric import as_number
from kvemb.restrict.built_in import TimestampRestrictPolicy
from kvemb.restrict.policy import ScoreRule


@dataclass(frozen=True)
class TimeToLiveRestrictPolicy(TimestampRestrictPolicy):
    """Rows that were not used for `ttl` leave whenever the variable is restricted, however many rows are reserved.

    Until then they are served; after it their keys read as missing ones. Of the others the least recently used leave
    first. ttl: in units of the clock, "seconds" or "steps" (calls that recorded uses). It is stored and cannot change.
    """

    kind: ClassVar[str] = "time_to_live"

    clock: str = "seconds"
    ttl: float = 30 * 86_400.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ttl = float(as_number(self.ttl, "TimeToLiveRestrictPolicy ttl"))
        if not 0 < ttl < float("inf"):
            raise ValueError(f"TimeToLiveRestrictPolicy ttl must be finite and above 0, got {self.ttl}")
        object.__setattr__(self, "ttl", ttl)

    @property
    def rule(self) -> ScoreRule:
        """LAST_USE, unless a subclass has a score of its own."""
        return ScoreRule.LAST_USE if type(self).score is TimestampRestrictPolicy.score else ScoreRule.CUSTOM

    def least_score(self, now: float) -> float:
        """Return the time of a use that is just not too long ago."""
        return now - self.ttl

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the clock and the ttl; of a subclass, its class by name."""
        if type(self) is not TimeToLiveRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "clock": self.clock, "ttl": self.ttl}
