"""The policy by which rows expire."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kvemb.checks.numeric import as_number
from kvemb.restrict.policy import ScoreRule
from kvemb.restrict.timestamp import TimestampRestrictPolicy


@dataclass(frozen=True)
class TimeToLiveRestrictPolicy(TimestampRestrictPolicy):
    """restrict removes every row that was not used for `ttl`, however many rows are reserved.

    Expired rows are served until they are removed; then their keys are missing. Of the other rows, the least recently
    used are removed first. ttl and clock are stored and cannot change.

    Args:
        ttl: The time after which an unused row expires, in the clock's unit. Default: 2592000.0, 30 days.
        clock: "seconds", or "steps": calls that recorded uses. Default: 'seconds'.

    Raises:
        TypeError: ttl is not a number.
        ValueError: ttl is not finite, not above 0, or clock is unknown.
    """

    kind: ClassVar[str] = "time_to_live"

    ttl: float = 30 * 86_400.0
    _: KW_ONLY
    clock: str = "seconds"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.ttl, str):
            raise TypeError(f"TimeToLiveRestrictPolicy ttl must be a number, such as 86400 for a day, got {self.ttl!r}")
        ttl = float(as_number(self.ttl, "TimeToLiveRestrictPolicy ttl"))
        if not 0 < ttl < float("inf"):
            raise ValueError(f"TimeToLiveRestrictPolicy ttl must be finite and above 0, got {self.ttl}")
        object.__setattr__(self, "ttl", ttl)

    @property
    def rule(self) -> ScoreRule:
        """LAST_USE, unless a subclass overrides score."""
        return ScoreRule.LAST_USE if type(self).score is TimestampRestrictPolicy.score else ScoreRule.CUSTOM

    def min_score(self, now: float) -> float:
        """Return now - ttl: rows whose last use was before that have expired."""
        return now - self.ttl

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the clock and the ttl; for a subclass, the name of its class."""
        if type(self) is not TimeToLiveRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "clock": self.clock, "ttl": self.ttl}
