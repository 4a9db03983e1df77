"""The policy that removes the least frequently used rows first (LFU), with or without decay."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    The half-life of a stored variable cannot change, because its scores have that scale.

    Args:
        half_life: The number of steps after which a use counts half. A step is a call that recorded uses, such as a
            lookup. None: uses never fade. Default: None.

    Raises:
        TypeError: half_life is neither None nor a number.
        ValueError: half_life is not finite, or not above 0.
    """

    kind = "frequency"
    _rule = ScoreRule.COUNT

    half_life: float | None = accepts(as_float, None, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.half_life is not None:
            object.__setattr__(self, "initial_score", -math.inf)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return old_score + count, or with a half-life log2(2**old_score + count * 2**(now / half_life))."""
        if self.half_life is None:
            return old_score + count
        # logaddexp2 is max + log2(1 + 2**(min - max)), which does not overflow, however large now is.
        scores: Scores = np.logaddexp2(old_score, np.log2(count) + now / self.half_life)
        return scores
