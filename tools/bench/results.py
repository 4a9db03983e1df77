"""The results of a benchmark: lines that compare kvemb with a peer, as a table or as JSON.

A Spread is the median of several runs with the minimum and the maximum. A ratio is the median of the runs' ratios, not
the ratio of the medians: the two sides of a run follow each other directly, so a noisy machine affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvemb.tools.screen import to_json


@dataclass(frozen=True)
class Spread:
    """The median, the minimum and the maximum of several runs."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise values, at least one."""
        numbers = [float(value) for value in values]
        return cls(statistics.median(numbers), min(numbers), max(numbers))


@dataclass(frozen=True)
class Comparison:
    """One comparison. bar: the required result, as text. met: whether it was reached; None without a bar."""

    name: str
    unit: str
    ours: Spread
    peer_name: str = ""
    peer: Spread | None = None
    ratio: Spread | None = None
    bar: str = ""
    met: bool | None = None


def compare(
    name: str, unit: str, ours: Sequence[float], peer_name: str, peer: Sequence[float], min_ratio: float | None = None
) -> Comparison:
    """Return the line of the ratios ours[i] / peer[i] of runs i; the bar is a ratio of at least min_ratio."""
    ratio = Spread.of(a / b for a, b in zip(ours, peer, strict=True))
    bar = "" if min_ratio is None else f"ratio ≥ {min_ratio:g}"
    met = None if min_ratio is None else ratio.median >= min_ratio
    return Comparison(name, unit, Spread.of(ours), peer_name, Spread.of(peer), ratio, bar, met)


def compare_cost(
    name: str, unit: str, ours: Sequence[float], peer_name: str, peer: Sequence[float], max_ratio: float | None = None
) -> Comparison:
    """As compare(), for costs; the bar is a ratio of at most max_ratio."""
    ratio = Spread.of(a / b for a, b in zip(ours, peer, strict=True))
    bar = "" if max_ratio is None else f"ratio ≤ {max_ratio:g}"
    met = None if max_ratio is None else ratio.median <= max_ratio
    return Comparison(name, unit, Spread.of(ours), peer_name, Spread.of(peer), ratio, bar, met)


@dataclass
class Report:
    """The results of a benchmark. settings: the options; facts: other figures, such as the compile time."""

    bench: str
    settings: dict[str, object]
    lines: list[Comparison] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def show(self, as_json: bool) -> None:
        """Print to stdout one JSON object, or a table followed by the facts."""
        self.show_parts([self.lines], as_json)

    def show_parts(self, parts: Iterable[Sequence[Comparison]], as_json: bool) -> None:
        """Print as show() does, but a table for each part as soon as it ends. Adds the lines to the report."""
        console = Console()
        lines: list[Comparison] = []
        if not as_json:
            title = f"bench {self.bench}: " + ", ".join(f"{k} {_number(v)}" for k, v in self.settings.items())
            console.print(title, highlight=False)
        for part in parts:
            lines += part
            if part and not as_json:
                _print_table(part, console)
                console.file.flush()  # so that this is printed even if the process is killed later
        self.lines = lines
        if as_json:
            print(to_json(asdict(self), indent=2))
            return
        for name, fact in self.facts.items():
            console.print(f"[dim]{name}:[/dim] {_number(fact)}", highlight=False)


def _print_table(lines: Iterable[Comparison], console: Console) -> None:
    table = Table(padding=0)
    for column in ("", "ours", "peer", "ratio", "bar", "met"):
        table.add_column(column, justify="left" if column in ("", "bar", "met") else "right", no_wrap=column != "")
    for line in lines:
        name = f"{line.name}, {line.unit}\n[dim]{escape(line.peer_name)}[/dim]"
        peer, ratio = ("" if spread is None else _spread(spread) for spread in (line.peer, line.ratio))
        met = "" if line.met is None else ("[green]yes[/green]" if line.met else "[red]no[/red]")
        table.add_row(name, _spread(line.ours), peer, ratio, line.bar, met)
    console.print(table)


def _spread(spread: Spread) -> str:
    middle = _number(spread.median)
    if spread.min == spread.max:
        return middle
    return f"{middle}\n[dim]{_number(spread.min)}..{_number(spread.max)}[/dim]"


def _number(value: object) -> str:
    if isinstance(value, float):
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g}{letter}"
        return f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_number(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    return str(value)
