"""The policy by which rows expire."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_choice, as_float
from kvemb.restrict.policy import CLOCKS, RestrictPolicy
from kvemb.restrict.timestamp import TimestampRestrictPolicy


@dataclass(frozen=True)
class TimeToLiveRestrictPolicy(TimestampRestrictPolicy):
    """restrict removes every row that was not used for `ttl`, however many rows are reserved.

    Expired rows are served until they are removed; then their keys are missing. Of the other rows, the least recently
    used are removed first. ttl and clock are stored. ttl may change whenever the
    variable is opened; clock cannot.

    Args:
        ttl: The time after which an unused row expires, in the clock's unit. Default: 2592000.0, 30 days.
        clock: "seconds", or "steps": calls that recorded uses. Default: 'seconds'.

    Raises:
        TypeError: ttl is not a number.
        ValueError: ttl is not finite, not above 0, or clock is unknown.
    """

    kind = "time_to_live"

    ttl: float = accepts(as_float, 30 * 86_400.0, above=0, hint="a day has 86400 seconds")
    _: KW_ONLY
    clock: str = accepts(as_choice, "seconds", among=CLOCKS)

    def continuing(self, stored: RestrictPolicy, step: int) -> RestrictPolicy | None:
        """Return the policy, if its clock is the same: scores are times, whatever ttl is. Raises nothing."""
        return self if self.clock == stored.clock else None

    def min_score(self, now: float) -> float:
        """Return now - ttl: rows whose last use was before that have expired."""
        return now - self.ttl
