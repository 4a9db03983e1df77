"""The results of a benchmark: lines that compare kvemb with a peer, as a table or as JSON.

A Spread is the median of several runs with the minimum and the maximum. A ratio is the median of the runs' ratios, not
the ratio of the medians: the two sides of a run follow each other directly, so a noisy machine affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvemb.tools.bench.measure import RunCost
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
    """One comparison. bar: the required result, as text. met: whether it was reached; None without a bar.

    The methods return the line with a bar, or as it is if the bound is None.
    """

    name: str
    unit: str
    ours: Spread
    peer_name: str = ""
    peer: Spread | None = None
    ratio: Spread | None = None
    bar: str = ""
    met: bool | None = None

    def at_least(self, bound: float | None) -> Comparison:
        """Require of our median."""
        return self._required("", "≥", self.ours, bound)

    def at_most(self, bound: float | None) -> Comparison:
        """Require of our median."""
        return self._required("", "≤", self.ours, bound)

    def ratio_at_least(self, bound: float | None) -> Comparison:
        """Require of the median ratio."""
        return self._required("ratio ", "≥", self.ratio, bound)

    def ratio_at_most(self, bound: float | None) -> Comparison:
        """Require of the median ratio."""
        return self._required("ratio ", "≤", self.ratio, bound)

    def _required(self, what: str, sign: str, found: Spread | None, bound: float | None) -> Comparison:
        if bound is None or found is None:
            return self
        met = found.median >= bound if sign == "≥" else found.median <= bound
        return replace(self, bar=f"{what}{sign} {bound:,g}", met=met)


def compare(name: str, unit: str, ours: Sequence[float], peer_name: str = "", peer: Sequence[float] = ()) -> Comparison:
    """Return the line of the figures of all runs, and of the ratios ours[i] / peer[i] if there is a peer."""
    if not peer:
        return Comparison(name, unit, Spread.of(ours))
    ratio = Spread.of(a / b for a, b in zip(ours, peer, strict=True))
    return Comparison(name, unit, Spread.of(ours), peer_name, Spread.of(peer), ratio)


# What runs consist of, and the unit of its CPU time in seconds.
CPU_UNITS = {"row": (1e-9, "ns"), "step": (1e-3, "ms")}


def compare_costs(
    name: str,
    count: int,
    ours: Sequence[RunCost],
    peer_name: str,
    peer: Sequence[RunCost],
    *,
    of: Literal["row", "step"] = "row",
) -> list[Comparison]:
    """Return the lines of rates, and of CPU time. count: rows or steps of each run."""
    size, unit = CPU_UNITS[of]
    rates = [[count / each.wall for each in side] for side in (ours, peer)]
    cpu = [[each.cpu / count / size for each in side] for side in (ours, peer)]
    return [
        compare(name, f"{of}s/s", rates[0], peer_name, rates[1]),
        compare(name, f"{unit} CPU a {of}", cpu[0], peer_name, cpu[1]),
    ]


@dataclass
class Report:
    """The results of a benchmark. facts: other figures, such as the compile time.

    parts: measures more lines while it is iterated, a part at a time.
    """

    lines: list[Comparison] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    parts: Iterable[Sequence[Comparison]] = ()

    def show(self, bench: str, settings: dict[str, object], as_json: bool) -> None:
        """Print to stdout one JSON object; or the lines as a table, each part as soon as it ends, and the facts."""
        console = Console()
        if not as_json:
            title = f"bench {bench}: " + ", ".join(f"{k} {number(v)}" for k, v in settings.items())
            console.print(title, highlight=False)
            _print_table(self.lines, console)
        for part in self.parts:
            self.lines += part
            if not as_json:
                _print_table(part, console)
        if as_json:
            lines = [asdict(line) for line in self.lines]
            print(to_json({"bench": bench, "settings": settings, "lines": lines, "facts": self.facts}, indent=2))
            return
        for name, fact in self.facts.items():
            console.print(f"[dim]{name}:[/dim] {number(fact)}", highlight=False)


def _print_table(lines: Sequence[Comparison], console: Console) -> None:
    if not lines:
        return
    table = Table(padding=0)
    for column in ("", "ours", "peer", "ratio", "bar", "met"):
        table.add_column(column, justify="left" if column in ("", "bar", "met") else "right", no_wrap=column != "")
    for line in lines:
        name = f"{line.name}, {line.unit}\n[dim]{escape(line.peer_name)}[/dim]"
        peer, ratio = ("" if spread is None else _spread(spread) for spread in (line.peer, line.ratio))
        met = "" if line.met is None else ("[green]yes[/green]" if line.met else "[red]no[/red]")
        table.add_row(name, _spread(line.ours), peer, ratio, line.bar, met)
    console.print(table)
    console.file.flush()  # so that this is printed even if the process is killed later


def _spread(spread: Spread) -> str:
    middle = number(spread.median)
    if spread.min == spread.max:
        return middle
    return f"{middle}\n[dim]{number(spread.min)}..{number(spread.max)}[/dim]"


def number(value: object) -> str:
    """Return a fact as text; a number with three digits: 12.3k, 45.6, 0.789."""
    if isinstance(value, float):
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g}{letter}"
        return f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {number(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(number, value))
    return str(value)
