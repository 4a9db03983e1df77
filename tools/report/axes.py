"""Scales: how far along an axis a value stands, and which values are labelled there.

Labels of one axis differ from each other, and fit beside each other on a phone. Plain values, without state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Protocol, TypeVar

# Labels of an axis of numbers, at most, beside that of its beginning.
STEPS = 5
# What a letter of a label takes of the width of a chart of 250 pixels, and the least gap between two labels.
LETTER, GAP = 0.031, 0.04
_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAYS = (1, 2, 3, 7, 14)
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 600)
# What datetime can hold, with a day to spare for the time zone.
EARLIEST, LATEST = -62_135_510_000.0, 253_402_200_000.0

Ticks = list[tuple[float, str]]
Fit = Callable[[Ticks], bool]
Choice = TypeVar("Choice")


def beside(ticks: Ticks) -> bool:
    """Whether labels at places fit below a chart, also in the nine tenths of it that bars at its ends leave."""
    ends = [extent(place, label) for place, label in ticks]
    return all(first[1] + GAP <= second[0] for first, second in pairwise(ends))


def extent(place: float, label: str) -> tuple[float, float]:
    """Return where a label begins and ends: those near the ends of a chart do not go beyond it."""
    wide = len(label) * LETTER
    begin = min(max(place - wide / 2, 0.0), 1.0 - wide)
    return begin, begin + wide


def above(ticks: Ticks) -> bool:
    """Whether labels at places fit on the left of a chart."""
    return len(ticks) <= STEPS + 1


class Scale(Protocol):
    """Values from low to high along an axis."""

    @property
    def low(self) -> float:
        """The least value."""

    @property
    def high(self) -> float:
        """The greatest value."""

    def place(self, value: float) -> float:
        """Return how far along the axis a value stands: 0 at low, 1 at high."""

    def ticks(self, fit: Fit = beside) -> Ticks:
        """Return the values to label, with their labels. fit: whether these do."""

    def say(self, value: float) -> str:
        """Return a value for people."""


@dataclass(frozen=True)
class Linear:
    """Equal steps. whole: only whole numbers are labelled. suffix: goes behind every label, such as " MiB"."""

    low: float
    high: float
    whole: bool = False
    suffix: str = ""

    def place(self, value: float) -> float:
        """Return how far along the axis a value stands."""
        return (value / 4 - self.low / 4) / (self.high / 4 - self.low / 4)  # a quarter: the difference stays finite

    def ticks(self, fit: Fit = beside) -> Ticks:
        """Return multiples of 1, 2 or 5 times a power of ten."""
        return _first_that_fits(self, self._ticks, range(STEPS, 0, -1), fit)

    def say(self, value: float) -> str:
        """Return a number with four digits, or a whole one exactly."""
        return (f"{value:,.0f}" if self.whole and abs(value) < 1e15 else number(value)) + self.suffix

    def _ticks(self, most: int) -> Ticks:
        step = _nice(min(4 * ((self.high / 4 - self.low / 4) / most), 1e308))
        step = max(step, 1.0) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [at * step for at in range(first, last + 1)] if last - first < 50 else [self.low, self.high]
        values = [value for value in values if -1e-6 <= self.place(value) <= 1 + 1e-6]
        return [(value, label + self.suffix) for value, label in zip(values, _labels(values, step), strict=True)]


@dataclass(frozen=True)
class Log:
    """Equal factors; low is above 0. whole: only whole numbers are labelled."""

    low: float
    high: float
    whole: bool = False

    def place(self, value: float) -> float:
        """Return how far along the axis a value stands."""
        return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def ticks(self, fit: Fit = beside) -> Ticks:
        """Return powers of ten, as few of them as fit; over less than two of them also 2 and 5 times each."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))

        def powers(every: int) -> Ticks:
            leading = (1, 2, 5) if every == 0 else (1,)
            found = [lead * 10.0**at for at in range(first, min(last, 307) + 1, max(1, every)) for lead in leading]
            return [(value, _short(value)) for value in found if value > 0 and self._labelled(value)]

        return _first_that_fits(self, powers, (0, 1, 2, 3, 5, 10, 20, 50, 100, 200), fit)

    def say(self, value: float) -> str:
        """Return a number with four digits, or a whole one exactly."""
        return f"{value:,.0f}" if self.whole and abs(value) < 1e15 else number(value)

    def _labelled(self, value: float) -> bool:
        return -1e-6 <= self.place(value) <= 1 + 1e-6 and (value >= 1 or not self.whole)


@dataclass(frozen=True)
class Time:
    """Seconds since 1970, labelled with local dates and times."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return how far along the axis a value stands."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self, fit: Fit = beside) -> Ticks:
        """Return round times: parts of a second, of an hour or of a day, days, firsts of months."""
        span = self.high - self.low
        short: list[Callable[[], Ticks]] = [
            *(lambda each=each: self._clock(each) for each in _SECONDS if span / each < 40),
            *(lambda each=each: self._days(each) for each in _DAYS if span / 86400 / each < 40),
            *(lambda each=each: self._months(each) for each in _MONTHS if span / 86400 / 28 / each < 40),
        ]
        if span < 4:
            return [(self.low, f"{self.low % 60:.3f} s"), (self.high, f"{self.high % 60:.3f} s")]
        return _first_that_fits(self, lambda each: each(), short, fit)

    def say(self, value: float) -> str:
        """Return a date and a time, to the second where the axis is short."""
        return moment(value, seconds=self.high - self.low < 86400)

    def _clock(self, step: int) -> Ticks:
        start = datetime.fromtimestamp(self.low).replace(hour=0, minute=0, second=0, microsecond=0)
        first = math.ceil((self.low - start.timestamp()) / step)
        form = "%H:%M:%S" if step < 60 else "%H:%M"
        form = form if self.high - self.low < 86400 else f"%b %d {form}"
        places = [start + timedelta(seconds=at * step) for at in range(first, first + 40)]
        return self._within(places, form)

    def _days(self, step: int) -> Ticks:
        start = datetime.fromtimestamp(self.low).replace(hour=0, minute=0, second=0, microsecond=0)
        return self._within([start + timedelta(days=at * step) for at in range(1, 41)], "%b %d")

    def _months(self, step: int) -> Ticks:
        start = datetime.fromtimestamp(self.low)
        months = [start.year * 12 + (start.month - 1) // step * step + at * step for at in range(1, 41)]
        return self._within([datetime(at // 12, at % 12 + 1, 1) for at in months if at < 9999 * 12], "%Y-%m")

    def _within(self, places: Sequence[datetime], form: str) -> Ticks:
        moments = [(place.timestamp(), place.strftime(form)) for place in places if place.year < 9999]
        return [(at, label) for at, label in moments if self.low <= at <= self.high]


def number(value: float) -> str:
    """Return a number for people: 1234567 as 1.235M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= abs(value) < 1e15:
            return f"{value / (limit if unit != 'k' else 1e3):.4g}{unit}"
    return f"{value:.4g}"


def _short(power: float) -> str:
    """Return a power of ten, or a few times one."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if limit <= power < 1e15:
            return f"{power / limit:g}{unit}"
    return f"{power:g}"


def moment(since_1970: float, *, seconds: bool = False) -> str:
    """Return seconds since 1970 as a local date and time; what no calendar holds as a number."""
    if not EARLIEST < since_1970 < LATEST:
        return number(since_1970)
    return datetime.fromtimestamp(since_1970).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def zone() -> str:
    """Return the name of the local time zone."""
    return datetime.now().astimezone().strftime("%Z")


def top(values: Sequence[float]) -> float:
    """Return where an axis from 0 ends that has room for values, above 0."""
    most = max(values, default=0.0)
    if most <= 0:
        return 1.0
    step = _nice(most / STEPS)
    return math.ceil(most / step - 1e-9) * step


def _nice(width: float) -> float:
    """Return 1, 2 or 5 times a power of ten, the least that is not below width."""
    power = 10.0 ** math.floor(math.log10(width))
    return next((lead * power for lead in (1, 2, 5) if lead * power >= width * (1 - 1e-9)), 10 * power)


def _labels(values: Sequence[float], step: float) -> list[str]:
    """Return values with as many digits as tell them apart."""
    most = max(map(abs, values), default=0.0)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= most < 1e15:
            size = limit if unit != "k" else 1e3
            digits = max(0, math.ceil(-math.log10(step / size) - 1e-9))
            if digits <= 2:
                return [f"{value / size:.{digits}f}{unit}" if value else "0" for value in values]
    if step > 1e-4 and most < 1e15:
        digits = max(0, math.ceil(-math.log10(step) - 1e-9))
        return [f"{value:,.{digits}f}" for value in values]
    digits = min(17, max(1, math.ceil(math.log10(most / step) + 1))) if most else 1
    return [f"{value:.{digits}g}" for value in values]


def _first_that_fits(scale: Scale, ticks: Callable[[Choice], Ticks], choices: Sequence[Choice], fit: Fit) -> Ticks:
    """Return the ticks of the first choice that has two or more and all fit; else those of the fewest that do."""

    def placed(found: Ticks) -> Ticks:
        return [(scale.place(value), label) for value, label in found]

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
