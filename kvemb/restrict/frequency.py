"""The policy that removes the least frequently used rows first (LFU), with or without decay."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvemb.checks.declared import accepts
from kvemb.checks.numeric import as_float
from kvemb.restrict.policy import Counts, RestrictPolicy, ScoreRule, Scores


@dataclass(frozen=True)
class FrequencyRestrictPolicy(RestrictPolicy):
    """The score is the number of uses: least frequently used rows are evicted first.

    Follows ``tfra.dynamic_embedding.FrequencyRestrictPolicy``, whose uses never fade.

    Every occurrence of a key counts. RestrictPolicy defines a use; upserts and gradient steps count only if they create
    the row.

    With half_life, uses fade: the score is log2 of the decayed count, in units fixed at step 0. It is log2 of the sum
    of 2**(step / half_life) over all uses. This is forward decay (Cormode, Shkapenyuk, Srivastava, Xu, "Forward Decay",
    ICDE 2009): scores of rows used at different times can be compared directly, unused rows need no update, and the
    logarithm prevents overflow.

    The half-life of a stored variable may change whenever it is opened: earlier uses then fade at the new rate, too. It
    cannot become None, or be given to a variable that has none, because such scores have other scales.

    Args:
        half_life: The number of steps after which a use counts half. A step is a call that recorded uses, such as a
            lookup. None: uses never fade. Default: None.
        origin: What is added to the scores of new uses. kvemb sets it when the half-life of a stored variable changes,
            so that scores before and after it can be compared. Default: 0.0.

    Raises:
        TypeError: half_life is neither None nor a number, or origin is no number.
        ValueError: half_life is not finite, or not above 0; origin is not finite, or not 0 without a half-life.
    """

    kind = "frequency"
    _rule = ScoreRule.COUNT

    half_life: float | None = accepts(as_float, None, above=0)
    origin: float = field(default=0.0, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "origin", as_float(self.origin, "FrequencyRestrictPolicy origin"))
        if self.half_life is None and self.origin:
            raise ValueError(
                f"FrequencyRestrictPolicy origin must be 0 without a half_life, got {self.origin!r}; leave it out"
            )
        if self.half_life is not None:
            object.__setattr__(self, "initial_score", -math.inf)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return old_score + count, or with a half-life log2(2**old_score + count * 2**(origin + now / half_life))."""
        if self.half_life is None:
            return old_score + count
        # logaddexp2 is max + log2(1 + 2**(min - max)), which does not overflow, however large now is.
        scores: Scores = np.logaddexp2(old_score, np.log2(count) + self.origin + now / self.half_life)
        return scores

    def continuing(self, stored: RestrictPolicy, step: int) -> RestrictPolicy | None:
        """Return the policy with the origin from which a use in this step has the score that it would have had.

        So rows used until now keep their scores, and fade at the new rate. A given origin is used as it is. None if
        only one of both policies has a half-life.
        """
        assert isinstance(stored, FrequencyRestrictPolicy)
        if self.half_life is None or stored.half_life is None or self.origin:
            return self if (self.half_life is None) == (stored.half_life is None) else None
        if self.half_life == stored.half_life:
            return stored
        return replace(self, origin=stored.origin + step / stored.half_life - step / self.half_life)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON, without an origin of 0."""
        data = super().to_json()
        return {name: value for name, value in data.items() if name != "origin" or value}
