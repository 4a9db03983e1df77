"""Charts as inline SVG: they need no network and no script, and follow the page's colours, light or dark.

A chart is as wide as its place: positions are percentages and text has the page's size, so that it is readable at any
width. The style (kvemb.tools.report.style) leaves room for labels around the plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from kvemb.tools.report.axes import Linear, Scale, above, extent, top
from kvemb.tools.report.bins import Bins

# Colours of lines; the last is for what is not told apart.
COLOURS = 8
# Share of the width for each bar of what is outside of a histogram's range, with its gap.
_OUTSIDE = 0.045
# What is counted is seen: the least height of a bar.
_SEEN = 0.012


@dataclass
class Line:
    """Values at places along an axis; None where there is none."""

    name: str
    values: Sequence[float | None]


@dataclass
class Part:
    """One part of stacked columns: numbers as they are drawn, and what is said of each."""

    name: str
    colour: str
    values: Sequence[float]
    tips: Sequence[str]


def histogram(title: str, found: Bins) -> str:
    """Bars between edges, and at the ends those of what is outside."""
    most = float(max([*found.counts.tolist(), found.under, found.over]))
    up = Linear(0, top([most]), whole=True)
    left, right = _OUTSIDE * (found.under > 0), 1 - _OUTSIDE * (found.over > 0)
    say, marks = found.scale.say, []

    def bar(first: float, last: float, count: int, colour: str, tip: str) -> None:
        if count:
            marks.append(_bar(first, last, 0.0, max(_SEEN, up.place(count)), colour, f"{tip}: {count:,}"))

    places = [left + (right - left) * found.scale.place(float(edge)) for edge in found.edges]
    for at, count in enumerate(found.counts.tolist()):
        low, high = float(found.edges[at]), float(found.edges[at + 1])
        bar(places[at], places[at + 1], count, "one", span(low, high, found.scale))
    if found.counts_zeros:
        bar(0.0, left * 0.7, found.under, "one", "0")
    else:
        bar(0.0, left * 0.7, found.under, "out", f"below {say(float(found.edges[0]))}")
    bar(1 - (1 - right) * 0.7, 1.0, found.over, "out", f"above {say(float(found.edges[-1]))}")
    below = [(left + (right - left) * found.scale.place(value), label) for value, label in found.scale.ticks()]
    zero = [(0.0, "0")] if found.counts_zeros and found.under else []
    return _plot(title, marks, [*zero, *below], up)


def span(low: float, high: float, scale: Scale) -> str:
    """Return what is between two edges of bins, in words: of whole numbers the first and the last that are."""
    if low % 1 == 0.5 and high % 1 == 0.5:
        first, last = f"{low + 0.5:,.0f}", f"{high - 0.5:,.0f}"
        return first if first == last else f"{first} to {last}"
    return f"{scale.say(low)} to {scale.say(high)}"


def columns(title: str, parts: Sequence[Part], below: Sequence[tuple[int, str]], *, suffix: str = "") -> str:
    """Stacked columns side by side, and what the parts are called. below: which columns are labelled."""
    count = len(parts[0].values)
    up = Linear(
        0, top([sum(part.values[at] for part in parts) for at in range(count)]), whole=not suffix, suffix=suffix
    )
    gap, marks = 0.12 / count, []
    for at in range(count):
        base = 0.0
        for part in parts:
            if part.values[at] > 0:
                height = up.place(part.values[at])
                marks.append(_bar(at / count + gap, (at + 1) / count - gap, base, height, part.colour, part.tips[at]))
                base += height
    keys = "" if len(parts) == 1 else _keys([(part.colour, part.name) for part in parts if any(part.values)])
    return _plot(title, marks, [((at + 0.5) / count, label) for at, label in below], up) + keys


def lines(title: str, drawn: Sequence[Line], along: Scale, at: Sequence[float], up: Scale) -> str:
    """Lines through values at places along an axis, each value a point that can be pointed at."""
    marks = []
    for number, line in enumerate(drawn):
        colour = f"line{min(number, COLOURS - 1)}"
        points = [
            (along.place(place), up.place(value), place, value)
            for place, value in zip(at, line.values, strict=True)
            if value is not None
        ]
        for (x1, y1, *_), (x2, y2, *_) in pairwise(points):
            ends = f'x1="{_share(x1)}" y1="{_share(1 - y1)}" x2="{_share(x2)}" y2="{_share(1 - y2)}"'
            marks.append(f'<line class="{colour}" {ends}/>')
        for x, y, place, value in points:
            tip = escape(f"{line.name}, {along.say(place)}: {value:,.0f}")
            marks.append(
                f'<circle class="{colour}" cx="{_share(x)}" cy="{_share(1 - y)}" r="2.5"><title>{tip}</title></circle>'
            )
    keys = [(f"line{min(number, COLOURS - 1)}", line.name) for number, line in enumerate(drawn)]
    below = [(along.place(value), label) for value, label in along.ticks()]
    return _plot(title, marks, below, up) + (_keys(keys) if len(keys) > 1 else "")


def scatter(title: str, points: Sequence[tuple[float, float, float, str]]) -> str:
    """Points (x, y, weight from 0 to 1, name), on both axes by one scale; heavier ones are larger."""
    wide, high = 560, 340
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    scale = min(
        (wide - 24) / max(max(xs) - min(xs), 1e-12),
        (high - 24) / max(max(ys) - min(ys), 1e-12),
    )
    middle = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    dots = [
        f'<circle class="dot" cx="{wide / 2 + (x - middle[0]) * scale:.1f}" '
        f'cy="{high / 2 + (y - middle[1]) * scale:.1f}" r="{3 + 4 * weight:.1f}"><title>{escape(name)}</title></circle>'
        for x, y, weight, name in points
    ]
    box = f'viewBox="0 0 {wide} {high}"'
    return f'<svg class="scatter" {box} role="img" aria-label="{escape(title)}">{"".join(dots)}</svg>'


def _plot(title: str, marks: Sequence[str], below: Sequence[tuple[float, str]], up: Scale) -> str:
    """An SVG with labels on the left and below."""
    drawn = []
    for value, label in up.ticks(above):
        y = _share(1 - up.place(value))
        drawn.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        drawn.append(f'<text class="label" x="-8" y="{y}" dy="4" text-anchor="end">{escape(label)}</text>')
    for place, label in below:
        begin, end = extent(place, label)
        at, anchor = (0.0, "start") if begin <= 0 else (1.0, "end") if end >= 1 else (place, "middle")
        x = _share(at)
        drawn.append(f'<text class="label" x="{x}" y="100%" dy="20" text-anchor="{anchor}">{escape(label)}</text>')
    return f'<svg class="plot" role="img" aria-label="{escape(title)}">{"".join([*drawn, *marks])}</svg>'


def _bar(first: float, last: float, base: float, height: float, colour: str, tip: str) -> str:
    place = f'x="{_share(first)}" width="{_share(max(0.0, last - first))}"'
    size = f'y="{_share(1 - base - height)}" height="{_share(height)}"'
    return f'<rect class="{colour}" {place} {size}><title>{escape(tip)}</title></rect>'


def _keys(names: Sequence[tuple[str, str]]) -> str:
    told = "".join(f'<span><i class="{colour}"></i><bdi>{escape(name)}</bdi></span>' for colour, name in names)
    return f'<p class="keys">{told}</p>'


def _share(part: float) -> str:
    return f"{100 * part:.2f}%"
