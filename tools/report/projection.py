"""Rows in two dimensions: those with the highest scores, or a random sample if rows have no scores.

The axes are the first two principal components of the shown rows, each scaled to norm 1: distance then means direction,
and one long row does not squeeze all others into a dot. Rows of zeros have no direction and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvemb.tools.numbers import unit

SHOWN = 500


@dataclass
class Projection:
    """Rows as points (n, 2). weights (n,): scores scaled to 0..1, all 0 without scores. share: part of the variance
    that the two axes hold. by_score: whether the rows are those with the highest scores.
    """

    keys: Any
    points: Any
    scores: Any
    weights: Any
    by_score: bool
    share: float


class Candidates:
    """Selects the rows to show while rows stream past."""

    def __init__(self, *, by_score: bool) -> None:
        self._by_score, self._chance = by_score, np.random.default_rng(0)
        self._parts: tuple[Any, ...] | None = None

    def add(self, keys: Any, values: Any, scores: Any) -> None:
        """Consider more rows: keys (n,), finite values (n, dim) float64, scores (n,)."""
        order = scores if self._by_score else self._chance.random(len(keys))
        parts: tuple[Any, ...] = (keys, values, scores, order)
        if self._parts is not None:
            parts = tuple(np.concatenate(pair) for pair in zip(self._parts, parts, strict=True))
        best = np.argsort(-parts[3], kind="stable")[:SHOWN]
        self._parts = tuple(part[best] for part in parts)

    def projection(self) -> Projection | None:
        """Return the rows as points; None if too few of them differ."""
        if self._parts is None:
            return None
        keys, values, scores, _ = self._parts
        values = unit(values)
        pointing = values.any(axis=1)
        keys, centred, scores = keys[pointing], values[pointing], scores[pointing]
        centred -= centred.mean(axis=0) if len(keys) else 0.0
        if len(keys) < 3 or np.abs(centred).max() < 1e-9:
            return None
        _, strength, axes = np.linalg.svd(centred, full_matrices=False)
        squares: Any = strength**2
        share = float(squares[:2].sum() / squares.sum())
        return Projection(keys, centred @ axes[:2].T, scores, self._weights(scores), self._by_score, share)

    def _weights(self, scores: Any) -> Any:
        finite = np.isfinite(scores)
        if not self._by_score or not finite.any():
            return np.zeros(len(scores))
        least, most = float(scores[finite].min()), float(scores[finite].max())
        return (np.clip(scores, least, most) - least) / max(most - least, 1e-300)
