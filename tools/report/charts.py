"""Charts as inline SVG: they need no network and no script, and follow the page's colours, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 220, 64, 26, 12


def number(value: float) -> str:
    """A number for people: 1234567 -> 1.23M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (limit if unit != 'k' else 1e3):.3g}{unit}"
    return f"{value:.4g}"


def _frame(title: str, inside: list[str], most: float, first: str, last: str) -> str:
    """An SVG with a scale on the left, and what the ends of the other axis are."""
    floor = HEIGHT - BOTTOM
    scale = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="label" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(most * share)}</text>'
        for share in (0.0, 0.5, 1.0)
        for y in [floor - share * (floor - TOP)]
    ]
    ends = (
        f'<text class="label" x="{LEFT}" y="{HEIGHT - 6}">{escape(first)}</text>'
        f'<text class="label" x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{escape(last)}</text>'
    )
    body = "".join([*scale, *inside, ends])
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{body}</svg>'


def bars(title: str, counts: Sequence[float], names: Sequence[str], ends: tuple[str, str]) -> str:
    """Bars side by side; names: what each is, shown when it is pointed at. ends: below the first and the last."""
    most = max([*counts, 1])
    step, floor = (WIDTH - LEFT) / max(1, len(counts)), HEIGHT - BOTTOM
    drawn = []
    for at, (count, name) in enumerate(zip(counts, names, strict=True)):
        height = count / most * (floor - TOP)
        place = f'x="{LEFT + at * step + 1:.1f}" y="{floor - height:.1f}" width="{max(1.0, step - 2):.1f}"'
        drawn.append(f'<rect class="bar" {place} height="{height:.1f}"><title>{escape(name)}: {count:,}</title></rect>')
    return _frame(title, drawn, most, *ends)


def stacked(
    title: str, series: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], ends: tuple[str, str]
) -> str:
    """Bars of several parts, and what the parts are called below."""
    totals = [sum(parts) for parts in zip(*(counts for _, counts in series), strict=True)]
    most = max([*totals, 1])
    step, floor = (WIDTH - LEFT) / max(1, len(totals)), HEIGHT - BOTTOM
    drawn = []
    for at, name in enumerate(names):
        top = float(floor)
        for kind, (part, counts) in enumerate(series):
            height = counts[at] / most * (floor - TOP)
            top -= height
            place = f'x="{LEFT + at * step + 1:.1f}" y="{top:.1f}" width="{max(1.0, step - 2):.1f}"'
            tip = f"<title>{escape(name)}: {counts[at]:,} {escape(part)}</title>"
            drawn.append(f'<rect class="part{kind}" {place} height="{height:.1f}">{tip}</rect>')
    keys = "".join(f'<span><i class="part{kind}"></i>{escape(part)}</span>' for kind, (part, _) in enumerate(series))
    return _frame(title, drawn, most, *ends) + f'<p class="keys">{keys}</p>'


def line(title: str, values: Sequence[float], names: Sequence[str], ends: tuple[str, str]) -> str:
    """A line through values, each a point that can be pointed at."""
    most, floor = max([*values, 1]), HEIGHT - BOTTOM
    step = (WIDTH - LEFT - 16) / max(1, len(values) - 1)
    points = [(LEFT + 8 + at * step, floor - value / most * (floor - TOP)) for at, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(name)}: {value:,}</title></circle>'
        for (x, y), value, name in zip(points, values, names, strict=True)
    ]
    return _frame(title, [f'<polyline class="line" points="{path}"/>', *dots], most, *ends)


def scatter(title: str, points: Sequence[tuple[float, float, float, str]]) -> str:
    """Points (x, y, weight from 0 to 1, name); heavier ones are larger."""
    if not points:
        return ""
    side = 420
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    wide = max(max(xs) - min(xs), max(ys) - min(ys), 1e-12)
    dots = []
    for x, y, weight, name in points:
        at_x, at_y = (x - min(xs)) / wide * (side - 20) + 10, (y - min(ys)) / wide * (side - 20) + 10
        dots.append(
            f'<circle class="dot faint" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{2 + 4 * weight:.1f}">'
            f"<title>{escape(name)}</title></circle>"
        )
    return f'<svg viewBox="0 0 {side} {side}" role="img" aria-label="{escape(title)}">{"".join(dots)}</svg>'
