"""The policy that removes the least frequently used rows first (LFU), with or without decay."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvemb.checks.brief import brief
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

    kind: ClassVar[str] = "frequency"

    half_life: float | None = None

    def __post_init__(self) -> None:
        given = self.half_life
        if given is None:
            return
        if isinstance(given, (bool, np.bool_)) or not isinstance(given, numbers.Real):
            raise TypeError(f"FrequencyRestrictPolicy half_life must be None or a number of steps, got {brief(given)}")
        try:
            steps = float(given)
        except OverflowError:
            steps = math.inf
        if not 0 < steps < math.inf:
            raise ValueError(f"FrequencyRestrictPolicy half_life must be finite and above 0, got {brief(given)}")
        object.__setattr__(self, "half_life", steps)
        object.__setattr__(self, "initial_score", -math.inf)

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return old_score + count, or with a half-life log2(2**old_score + count * 2**(now / half_life))."""
        if self.half_life is None:
            return old_score + count
        # logaddexp2 is max + log2(1 + 2**(min - max)), which does not overflow, however large now is.
        scores: Scores = np.logaddexp2(old_score, np.log2(count) + now / self.half_life)
        return scores

    @property
    def rule(self) -> ScoreRule:
        """COUNT without a half-life, unless a subclass overrides score or initial_score; else CUSTOM."""
        plain = self.half_life is None and self.initial_score == 0.0
        return ScoreRule.COUNT if plain and type(self).score is FrequencyRestrictPolicy.score else ScoreRule.CUSTOM

    def to_json(self) -> dict[str, Any]:
        """Return the kind and the half-life; for a subclass, the name of its class."""
        if type(self) is not FrequencyRestrictPolicy:
            return super().to_json()
        return {"kind": self.kind, "half_life": self.half_life}
