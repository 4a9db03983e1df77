"""Scales of axes: the position of a value, and which values are labelled.

Labels of one axis differ from each other, and fit side by side on a phone. Scales are immutable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TypeVar

# The most labels of a numeric axis, besides the first.
STEPS = 5
# The width of a letter and the smallest gap between two labels, as shares of the width of a chart of 250 pixels.
LETTER, GAP = 0.031, 0.04
_DAY, _MONDAY = 86_400, datetime(1970, 1, 5)
_SECONDS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200]
_SECONDS += [days * _DAY for days in (1, 2, 3, 7, 14, 30, 60, 90, 180, 360, 720, 3600, 18_000, 180_000)]
# The limits of datetime in seconds since 1970, less a day for the time zone.
EARLIEST, LATEST = -62_135_510_000.0, 253_402_200_000.0

Ticks = list[tuple[float, str]]
Fit = Callable[[Ticks], bool]
Choice = TypeVar("Choice")


def side_by_side(ticks: Ticks) -> bool:
    """Whether labels at these positions fit below a chart, also in the nine tenths between bars at its ends."""
    ends = [extent(position, label) for position, label in ticks]
    return all(first[1] + GAP <= second[0] for first, second in pairwise(ends))


def extent(position: float, label: str) -> tuple[float, float]:
    """Return where a label at a position begins and ends; labels near the ends of a chart stay within it."""
    wide = len(label) * LETTER
    begin = min(max(position - wide / 2, 0.0), 1.0 - wide)
    return begin, begin + wide


def stacked(ticks: Ticks) -> bool:
    """Whether so many labels fit on the left of a chart."""
    return len(ticks) <= STEPS + 1


class Scale(ABC):
    """Values from low to high along an axis."""

    low: float
    high: float

    @abstractmethod
    def position(self, value: float) -> float:
        """Return the position of a value on the axis: 0 at low, 1 at high."""

    @abstractmethod
    def ticks(self, fit: Fit = side_by_side) -> Ticks:
        """Return the values to label, with their labels. fit: whether labels at given positions fit."""

    @abstractmethod
    def format(self, value: float) -> str:
        """Return a value as text."""


@dataclass(frozen=True)
class Linear(Scale):
    """A linear scale, with labels at multiples of 1, 2 or 5 times a power of ten.

    whole: only integers are labelled. suffix: follows every label, such as " MiB".
    """

    low: float
    high: float
    whole: bool = False
    suffix: str = ""

    def position(self, value: float) -> float:
        # Divided by 4 so that the difference stays finite.
        return (value / 4 - self.low / 4) / (self.high / 4 - self.low / 4)

    def ticks(self, fit: Fit = side_by_side) -> Ticks:
        return first_that_fits(self, self._ticks, range(STEPS, 0, -1), fit)

    def format(self, value: float) -> str:
        return (f"{value:,.0f}" if self.whole and abs(value) < 1e15 else number(value)) + self.suffix

    def _ticks(self, most: int) -> Ticks:
        step = _nice(min(4 * ((self.high / 4 - self.low / 4) / most), 1e308))
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [at * step for at in range(first, last + 1)] if last - first < 50 else [self.low, self.high]
        values = [value for value in values if -1e-6 <= self.position(value) <= 1 + 1e-6]
        return [(value, label + self.suffix) for value, label in zip(values, _labels(values, step), strict=True)]


@dataclass(frozen=True)
class Log(Scale):
    """A log scale, with labels at powers of ten, and if there is room at 2 and 5 times each.

    low is above 0. whole: only integers are labelled.
    """

    low: float
    high: float
    whole: bool = False

    def position(self, value: float) -> float:
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def ticks(self, fit: Fit = side_by_side) -> Ticks:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))

        def powers(every: int) -> Ticks:
            leading = (1, 2, 5) if every == 0 else (1,)
            found = [lead * 10.0**at for at in range(first, min(last, 307) + 1, max(1, every)) for lead in leading]
            labelled = [(value, *_prefix(value)) for value in found if value > 0 and self._labelled(value)]
            return [(value, f"{value / size:g}{unit}") for value, size, unit in labelled]

        return first_that_fits(self, powers, (0, 1, 2, 3, 5, 10, 20, 50, 100, 200), fit)

    def format(self, value: float) -> str:
        return f"{value:,.0f}" if self.whole and abs(value) < 1e15 else number(value)

    def _labelled(self, value: float) -> bool:
        return -1e-6 <= self.position(value) <= 1 + 1e-6 and (value >= 1 or not self.whole)


@dataclass(frozen=True)
class Time(Scale):
    """A scale of seconds since 1970, labelled with local dates and times, which are round."""

    low: float
    high: float

    def position(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def ticks(self, fit: Fit = side_by_side) -> Ticks:
        steps = [step for step in _SECONDS if (self.high - self.low) / step < 40]
        return first_that_fits(self, self._every, steps, fit)

    def format(self, value: float) -> str:
        return local_time(value, seconds=self.high - self.low < _DAY)

    def _every(self, step: float) -> Ticks:
        """Return the local times at multiples of so many seconds since the Monday after 1 January 1970."""
        first, last = ((datetime.fromtimestamp(end) - _MONDAY).total_seconds() / step for end in (self.low, self.high))
        numbers = range(math.ceil(first), math.floor(last) + 1)
        times = [_MONDAY + timedelta(milliseconds=round(at * step * 1000)) for at in numbers]
        form = "%H:%M:%S" if step < 60 else "%H:%M"
        if step >= _DAY:
            form = "%b %d" if step < 30 * _DAY else "%Y-%m-%d"
        elif self.high - self.low >= _DAY:
            form = f"%b %d {form}"
        fraction = slice(-7, -5) if step < 1 else slice(0)  # ".5" of "14:02:36.500000"
        return [(time.timestamp(), time.strftime(form) + f"{time:%S.%f}"[fraction]) for time in times]


def number(value: float) -> str:
    """Return a number with four digits and a unit prefix: 1234567 as 1.235M."""
    size, unit = _prefix(value, 1e4)
    return f"{value / size:.4g}{unit}"


def _prefix(value: float, least: float = 1e3) -> tuple[float, str]:
    """Return the size and the letter of a number's unit prefix; 1 and "" below `least`, and for very large numbers."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if max(size, least) <= abs(value) < 1e15:
            return size, letter
    return 1.0, ""


def local_time(since_1970: float, *, seconds: bool = False) -> str:
    """Return seconds since 1970 as a local date and time; as a number if datetime cannot hold it."""
    if not EARLIEST < since_1970 < LATEST:
        return number(since_1970)
    return datetime.fromtimestamp(since_1970).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def zone() -> str:
    """Return the name of the local time zone."""
    return datetime.now().astimezone().strftime("%Z")


def top(values: Sequence[float]) -> float:
    """Return the upper end, above 0, of an axis that begins at 0 and has room for values."""
    most = max(values, default=0.0)
    if most <= 0:
        return 1.0
    step = _nice(most / STEPS)
    return math.ceil(most / step - 1e-9) * step


def _nice(width: float) -> float:
    """Return the smallest number that is 1, 2 or 5 times a power of ten and not below width."""
    power = 10.0 ** math.floor(math.log10(width))
    return next((lead * power for lead in (1, 2, 5) if lead * power >= width * (1 - 1e-9)), 10 * power)


def _labels(values: Sequence[float], step: float) -> list[str]:
    """Return values as text, with as many digits as are needed to distinguish them."""
    most = max(map(abs, values), default=0.0)
    size, unit = _prefix(most, 1e4)
    digits = max(0, math.ceil(-math.log10(step / size) - 1e-9))
    if unit and digits <= 2:
        return [f"{value / size:.{digits}f}{unit}" if value else "0" for value in values]
    if step > 1e-4 and most < 1e15:
        digits = max(0, math.ceil(-math.log10(step) - 1e-9))
        return [f"{value:,.{digits}f}" for value in values]
    digits = min(17, max(1, math.ceil(math.log10(most / step) + 1))) if most else 1
    return [f"{value:.{digits}g}" for value in values]


def first_that_fits(scale: Scale, ticks: Callable[[Choice], Ticks], choices: Sequence[Choice], fit: Fit) -> Ticks:
    """Return the ticks of the first choice with two or more that all fit; otherwise those that fit of the fewest."""

    def placed(found: Ticks) -> Ticks:
        return [(scale.position(value), label) for value, label in found]

    fewest: Ticks = []
    for choice in choices:
        found = ticks(choice)
        if len(found) >= 2 and fit(placed(found)):
            return found
        if found and (not fewest or len(found) < len(fewest)):
            fewest = found
    kept: Ticks = []
    for tick in fewest:
        kept += [tick] if fit(placed([*kept, tick])) else []
    return kept
