"""The policy that removes small rows first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.restrict.policy import Counts, RestrictPolicy, ScoreRule, Scores


@dataclass(frozen=True)
class NormRestrictPolicy(RestrictPolicy):
    """restrict removes the rows with the smallest L2 norm first: rows that training has left near zero.

    Rows are evicted from the hot tier by another number, because a norm changes with every step: scores are numbers of
    uses. Norms are calculated in float64 when the variable is restricted. A row with NaN is removed first.
    """

    kind = "norm"
    _rule = ScoreRule.COUNT

    def score(self, old_score: Scores, count: Counts, now: float) -> Scores:
        """Return old_score + count."""
        return old_score + count

    def ranking(self, scores: Scores, values: npt.NDArray[Any]) -> Scores:
        """Return the L2 norm of each row."""
        wide = values.astype(np.float64)
        norms: Scores = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        return np.where(np.isnan(norms), -np.inf, norms)
