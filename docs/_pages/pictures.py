"""Charts as separate SVG files, for Markdown, on a light or a dark page.

A picture has its own background and size, and no script. Colours follow the reader's theme if the viewer supports it;
other viewers show the light colours, which are readable because the picture has its own background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from kvemb.tools.report.axes import Fit, Scale, Ticks, beside, first_that_fits
from kvemb.tools.report.charts import COLOURS, Curve, curve_marks, plot
from kvemb.tools.report.style import DARK, LIGHT

WIDE = 410
_LEFT, _RIGHT, _TOP, _HIGH = 52, 18, 50, 180
# Height of a line of the legend, the width of its sample of a line, and of a letter, in pixels.
_LINE, _SAMPLE, _LETTER = 18, 26, 6.3
# Heights below the plot: of the labels, of the axis's name.
_BELOW = 48


@dataclass(frozen=True)
class Categories(Scale):
    """Places 0, 1, ... side by side, each with its label; every second, third, ... label if they do not fit."""

    labels: tuple[str, ...]

    def position(self, value: float) -> float:
        return (value + 0.5) / len(self.labels)

    def ticks(self, fit: Fit = beside) -> Ticks:
        places: Ticks = [(float(at), label) for at, label in enumerate(self.labels)]
        return first_that_fits(self, lambda every: places[::every], range(1, len(places) + 1), fit)

    def format(self, value: float) -> str:
        return self.labels[round(value)]


def picture(title: str, curves: Sequence[Curve], along: Scale, up: Scale, *, across: str, note: str = "") -> str:
    """Return an SVG file of curves with a legend. across: the name of the horizontal axis; note: a line below title."""
    marks = [mark for curve in curves for mark in curve_marks(curve, along, up)]
    below = [(along.position(value), label) for value, label in along.ticks()]
    box = f' x="{_LEFT}" y="{_TOP}" width="{WIDE - _LEFT - _RIGHT}" height="{_HIGH}" overflow="visible"'
    keys, lines = _legend(curves, _TOP + _HIGH + _BELOW + 10)
    high = _TOP + _HIGH + _BELOW + _LINE * lines + 6
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" '
            f'role="img" aria-label="{escape(title)}"><style>{_style()}</style>',
            f'<rect class="card" x="0.5" y="0.5" width="{WIDE - 1}" height="{high - 1}" rx="6"/>',
            f'<text class="title" x="14" y="22">{escape(title)}</text>',
            f'<text class="label" x="14" y="38">{escape(note)}</text>',
            plot(title, marks, below, up, box),
            f'<text class="label" x="{(WIDE + _LEFT - _RIGHT) / 2:g}" y="{_TOP + _HIGH + 36}" text-anchor="middle">'
            f"{escape(across)}</text>",
            *keys,
            "</svg>\n",
        ]
    )


def _legend(curves: Sequence[Curve], first: float) -> tuple[list[str], int]:
    """Return the legend and its number of lines: column by column, as many as fit. first: the y of the first line."""
    widest = max(_SAMPLE + 6 + _LETTER * len(curve.name) + 14 for curve in curves)
    columns = max(1, min(len(curves), int((WIDE - 28) // widest)))
    lines = -(-len(curves) // columns)
    drawn = []
    for at, curve in enumerate(curves):
        x, y = 14 + at // lines * (WIDE - 28) / columns, first + at % lines * _LINE
        dashes = ' stroke-dasharray="5 4"' if curve.dashed else ""
        line = f'x1="{x:g}" x2="{x + _SAMPLE:g}" y1="{y - 4:g}" y2="{y - 4:g}"{dashes}'
        drawn.append(f'<line class="line{min(curve.colour, COLOURS - 1)}" {line}/>')
        drawn.append(f'<text class="label" x="{x + _SAMPLE + 6:g}" y="{y:g}">{escape(curve.name)}</text>')
    return drawn, lines


def _style() -> str:
    """Return the CSS rules without variables, which converters of SVG do not support."""
    return f"""
text {{ font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; }}
.title {{ font-size: 14px; font-weight: 600; }}
{_colours(LIGHT)}
@media (prefers-color-scheme: dark) {{
{_colours(DARK)}
}}
"""


def _colours(names: dict[str, str]) -> str:
    rules = [
        f".card {{ fill: {names['card']}; stroke: {names['edge']}; }}",
        f".title {{ fill: {names['text']}; }}",
        f".label {{ fill: {names['faint']}; }}",
        f".grid {{ stroke: {names['grid']}; stroke-width: 1; }}",
    ]
    lines = [
        f".line{at} {{ fill: {names[f'c{at}']}; stroke: {names[f'c{at}']}; stroke-width: 2; }}" for at in range(COLOURS)
    ]
    return "\n".join([*rules, *lines])
