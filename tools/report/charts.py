"""Charts as inline SVG: they need no network and no script, and use the colours of the page's theme.

A chart fills the width of its container: positions are percentages, and text has the page's size, so it is readable at
any width. The style (kvemb.tools.report.style) leaves room for labels around the plot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from kvemb.tools.report.axes import Linear, Scale, extent, stacked, top
from kvemb.tools.report.bins import Bins

# Number of line colours; the last one is for all remaining lines.
COLOURS = 8
# Share of the width, gap included, of each bar for the numbers outside of a histogram's range.
_OUTSIDE = 0.045
# The smallest height of a bar, so that a count of 1 is visible.
_MIN_HEIGHT = 0.012


@dataclass
class Curve:
    """Points (x, y) joined by lines, each with a tooltip. colour: the number of its colour."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


@dataclass
class Part:
    """One part of stacked columns: the height of each column, and its tooltip."""

    name: str
    colour: str
    values: Sequence[float]
    tips: Sequence[str]


def histogram(title: str, found: Bins) -> str:
    """Return bars between edges, and at the ends bars of the numbers outside."""
    most = float(max([*found.counts.tolist(), found.under, found.over]))
    up = Linear(0, top([most]), whole=True)
    left, right = _OUTSIDE * (found.under > 0), 1 - _OUTSIDE * (found.over > 0)
    show, marks = found.scale.format, []

    def bar(first: float, last: float, count: int, colour: str, tip: str) -> None:
        if count:
            marks.append(_bar(first, last, 0.0, max(_MIN_HEIGHT, up.position(count)), colour, f"{tip}: {count:,}"))

    positions = [left + (right - left) * found.scale.position(float(edge)) for edge in found.edges]
    for at, count in enumerate(found.counts.tolist()):
        low, high = float(found.edges[at]), float(found.edges[at + 1])
        bar(positions[at], positions[at + 1], count, "one", span(low, high, found.scale))
    if found.counts_zeros:
        bar(0.0, left * 0.7, found.under, "one", "0")
    else:
        bar(0.0, left * 0.7, found.under, "out", f"below {show(float(found.edges[0]))}")
    bar(1 - (1 - right) * 0.7, 1.0, found.over, "out", f"above {show(float(found.edges[-1]))}")
    below = [(left + (right - left) * found.scale.position(value), label) for value, label in found.scale.ticks()]
    zero = [(0.0, "0")] if found.counts_zeros and found.under else []
    return plot(title, marks, [*zero, *below], up)


def span(low: float, high: float, scale: Scale) -> str:
    """Return the range between two edges as text; for integer bins, the first and the last integer."""
    if low % 1 == 0.5 and high % 1 == 0.5:
        first, last = f"{low + 0.5:,.0f}", f"{high - 0.5:,.0f}"
        return first if first == last else f"{first} to {last}"
    return f"{scale.format(low)} to {scale.format(high)}"


def columns(title: str, parts: Sequence[Part], below: Sequence[tuple[int, str]], *, suffix: str = "") -> str:
    """Return stacked columns with a legend. below: (column, label) of the columns to label."""
    count = len(parts[0].values)
    up = Linear(
        0, top([sum(part.values[at] for part in parts) for at in range(count)]), whole=not suffix, suffix=suffix
    )
    gap, marks = 0.12 / count, []
    for at in range(count):
        base = 0.0
        for part in parts:
            if part.values[at] > 0:
                height = up.position(part.values[at])
                marks.append(_bar(at / count + gap, (at + 1) / count - gap, base, height, part.colour, part.tips[at]))
                base += height
    keys = "" if len(parts) == 1 else _legend([(part.colour, part.name) for part in parts if any(part.values)])
    return plot(title, marks, [((at + 0.5) / count, label) for at, label in below], up) + keys


def lines(title: str, curves: Sequence[Curve], along: Scale, up: Scale) -> str:
    """Return curves with a legend."""
    marks = [mark for curve in curves for mark in curve_marks(curve, along, up)]
    keys = [(f"line{min(curve.colour, COLOURS - 1)}", curve.name) for curve in curves]
    below = [(along.position(value), label) for value, label in along.ticks()]
    return plot(title, marks, below, up) + (_legend(keys) if len(keys) > 1 else "")


def curve_marks(curve: Curve, along: Scale, up: Scale) -> list[str]:
    """Return a curve's segments, and its points with tooltips."""
    colour = f"line{min(curve.colour, COLOURS - 1)}"
    placed = [(along.position(x), up.position(y)) for x, y in curve.points]
    dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
    marks = []
    for (x1, y1), (x2, y2) in pairwise(placed):
        ends = f'x1="{_share(x1)}" y1="{_share(1 - y1)}" x2="{_share(x2)}" y2="{_share(1 - y2)}"'
        marks.append(f'<line class="{colour}" {ends}{dashes}/>')
    for (left, high), (x, y) in zip(placed, curve.points, strict=True):
        tip = escape(f"{curve.name}, {along.format(x)}: {up.format(y)}")
        where = f'cx="{_share(left)}" cy="{_share(1 - high)}"'
        marks.append(f'<circle class="{colour}" {where} r="2.5"><title>{tip}</title></circle>')
    return marks


def scatter(title: str, points: Sequence[tuple[float, float, float, str]]) -> str:
    """Return points (x, y, weight from 0 to 1, name), with one scale for both axes; dots grow with the weight."""
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


def plot(title: str, marks: Sequence[str], below: Sequence[tuple[float, str]], up: Scale, box: str = "") -> str:
    """Return an SVG with labels on the left and below. box: its attributes of place and size, if no CSS has them."""
    drawn = []
    for value, label in up.ticks(stacked):
        y = _share(1 - up.position(value))
        drawn.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        drawn.append(f'<text class="label" x="-8" y="{y}" dy="4" text-anchor="end">{escape(label)}</text>')
    for position, label in below:
        begin, end = extent(position, label)
        at, anchor = (0.0, "start") if begin <= 0 else (1.0, "end") if end >= 1 else (position, "middle")
        x = _share(at)
        drawn.append(f'<text class="label" x="{x}" y="100%" dy="20" text-anchor="{anchor}">{escape(label)}</text>')
    return f'<svg class="plot" role="img" aria-label="{escape(title)}"{box}>{"".join([*drawn, *marks])}</svg>'


def _bar(first: float, last: float, base: float, height: float, colour: str, tip: str) -> str:
    span = f'x="{_share(first)}" width="{_share(max(0.0, last - first))}"'
    size = f'y="{_share(1 - base - height)}" height="{_share(height)}"'
    return f'<rect class="{colour}" {span} {size}><title>{escape(tip)}</title></rect>'


def _legend(names: Sequence[tuple[str, str]]) -> str:
    legend = "".join(f'<span><i class="{colour}"></i><bdi>{escape(name)}</bdi></span>' for colour, name in names)
    return f'<p class="keys">{legend}</p>'


def _share(part: float) -> str:
    return f"{100 * part:.2f}%"
