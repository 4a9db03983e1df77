"""Bins of a histogram, chosen so that a few outliers do not squeeze all other numbers into one bar.

The range extends beyond the 1st and the 99th percentile by half the distance between them, but not beyond the smallest
and the largest number. Numbers outside of it are counted in one bin at either end. Positive numbers that span a factor
of 50 or more get a log scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from kvemb.tools.report.axes import EARLIEST, LATEST, Linear, Log, Scale, Time

BINS = 32
PERCENTILES = (1, 25, 50, 75, 99)
# Ratio of the 99th to the 5th percentile from which the scale is logarithmic; uniform numbers have 20.
_LOG_FROM = 50.0
# The smallest range that is divided into bins; a smaller one is drawn as if all numbers were equal.
TINY = 1e-300
LEAST, MOST = 5e-324, float(np.finfo(np.float64).max)
Numbers = npt.NDArray[np.float64]


class Kind(Enum):
    """What the numbers mean: anything, integer counts, steps of a clock, or seconds since 1970."""

    ANY = "any"
    COUNT = "count"
    STEP = "step"
    TIME = "time"


@dataclass
class Bins:
    """Counts of numbers between edges, and of those below the first edge (under) and above the last (over)."""

    scale: Scale
    edges: Numbers
    counts: npt.NDArray[np.int64] = field(init=False)
    under: int = 0
    over: int = 0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.edges) - 1, np.int64)

    @property
    def counts_zeros(self) -> bool:
        """Whether the numbers below the first edge are zeros, which a log scale cannot show."""
        return isinstance(self.scale, Log) and self.scale.whole and self.edges[0] == 0.5

    def add(self, numbers: Numbers) -> None:
        """Count some more finite numbers."""
        self.counts += np.histogram(numbers, self.edges)[0]
        self.under += int((numbers < self.edges[0]).sum())
        self.over += int((numbers > self.edges[-1]).sum())


def bins(sample: Numbers, least: float, most: float, kind: Kind = Kind.ANY) -> Bins:
    """Return empty bins for numbers from least to most; sample (n,) is a random sample of them. All are finite."""
    positive = sample[sample > 0]
    if kind in (Kind.ANY, Kind.COUNT) and least >= 0 and len(positive):
        low, high = _at(positive, 5), _at(positive, 99)
        if high / low >= _LOG_FROM:
            return _logarithmic(positive, least, most, kind)
    low, high = _range(sample, least, most)
    if kind in (Kind.COUNT, Kind.STEP) and max(abs(low), abs(high)) < 2**50:
        low, width = np.floor(low), max(1.0, np.ceil((high - low + 1) / BINS))
        count = max(1, int(np.ceil((high - low + 1) / width)))
        edges = low - 0.5 + width * np.arange(count + 1)
        return Bins(Linear(float(edges[0]), float(edges[-1]), whole=True), edges)
    if float(high) - float(low) < TINY:
        apart = max(0.5, abs(low) * 1e-3)
        low, high = max(low - apart, -MOST), min(high + apart, MOST)
    edges = np.linspace(low / 4, high / 4, BINS + 1) * 4  # divided by 4 so that the difference stays finite
    edges[0], edges[-1] = low, high
    timed = kind is Kind.TIME and low > EARLIEST and high < LATEST
    return Bins(Time(low, high) if timed else Linear(low, high), edges)


def percentiles(sample: Numbers, least: float, most: float) -> list[tuple[str, float]]:
    """Return the smallest number, PERCENTILES and the largest number, each as (label, value)."""
    between = [("median" if each == 50 else f"{each}%", _at(sample, each)) for each in PERCENTILES]
    return [("min", least), *between, ("max", most)]


def _logarithmic(positive: Numbers, least: float, most: float, kind: Kind) -> Bins:
    ends = _range(np.log(positive), _log(least), _log(most))
    if kind is Kind.COUNT:
        first, last = max(1.0, np.round(_exp(ends[0]))), np.round(_exp(ends[1])) + 1
        edges: Any = np.unique(np.round(_exp(np.linspace(np.log(first), np.log(last), BINS + 1)))) - 0.5
    else:
        edges = _exp(np.linspace(ends[0] - 1e-9, ends[1] + 1e-9, BINS + 1))
    return Bins(Log(float(edges[0]), float(edges[-1]), kind is Kind.COUNT), edges)


def _exp(powers: Any) -> Any:
    """Return exp(powers), clipped to float64: rounding may take it beyond the limits for the extreme numbers."""
    with np.errstate(over="ignore", under="ignore"):
        return np.clip(np.exp(powers), LEAST, MOST)


def _log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf


def _range(sample: Numbers, least: float, most: float) -> tuple[float, float]:
    """Return the range (low, high) that a histogram shows."""
    for outside in (1.0, 0.1):
        low, high = _at(sample, outside), _at(sample, 100 - outside)
        if high > low:
            with np.errstate(over="ignore"):
                beyond = high / 2 - low / 2
                low, high = max(least, low - beyond), min(most, high + beyond)
            return (low, high)
    return (least, most) if np.isfinite(least) else (float(np.min(sample)), most)


def _at(sample: Numbers, percent: float) -> float:
    """Return a percentile that is one of the numbers: interpolating towards an outlier would invent numbers."""
    return float(np.percentile(sample, percent, method="lower" if percent >= 50 else "higher"))
