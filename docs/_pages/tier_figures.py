"""Selects the results for charts and tables: the cases, and one figure for several windows."""

from __future__ import annotations

import math
import statistics

from kvemb.tools.bench.tier.cases import Case
from kvemb.tools.bench.tier.records import Record

Found = dict[Case, Record]


def grid(found: Found) -> Found:
    """Return the training steps at the first size, by hot share and skew in order."""
    steps = [case for case in found if case.kind == "steps"]
    first = [case for case in steps if case.rows == steps[0].rows]
    return {case: found[case] for case in sorted(first, key=lambda case: (case.zipf, case.hot))}


def growing(found: Found) -> Found:
    """Return the training steps at the middle hot share and skew, by size."""
    cases = list(grid(found))
    if not cases:
        return {}
    hot, zipf = sorted({case.hot for case in cases}), sorted({case.zipf for case in cases})
    middle = hot[len(hot) // 2], zipf[len(zipf) // 2]
    same = [case for case in found if case.kind == "steps" and (case.hot, case.zipf) == middle]
    return {case: found[case] for case in sorted(same, key=lambda case: case.rows)}


def middle(figures: dict[str, list[float]], name: str) -> float:
    """Return the median over windows; for bytes the mean, because flushes and merges are not in every window."""
    values = figures[name]
    return statistics.fmean(values) if name.endswith("_bytes") else statistics.median(values)


def one(found: Found, kind: str) -> Record | None:
    """Return the first result of a kind."""
    return next((result for case, result in found.items() if case.kind == kind), None)


def ratio(result: Record, cache: str) -> float:
    """Return how many times as fast kvemb is: the median over windows of the ratio to the peer's same window.

    NaN if the case was not measured with this page cache.
    """
    if not result[cache]:
        return math.nan
    ours, theirs = (result[cache][side]["rows_per_s"] for side in ("kvemb", "by_hand"))
    return float(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)))
