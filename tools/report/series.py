"""The report's section about a series: rows by variable over time, bytes, and how many rows changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from kvemb.tools.diff import Difference
from kvemb.tools.report.axes import GAP, LETTER, Linear, Log, Scale, Time, moment, top
from kvemb.tools.report.charts import COLOURS, Line, Part, columns, lines
from kvemb.tools.report.history import History
from kvemb.tools.report.markup import card, cards, heading
from kvemb.tools.screen import size

# Ratio of the largest to the smallest variable from which rows are drawn on a log scale.
_LOG_FROM = 30.0
CHURN_NOTE = "Moved: the embedding changed. Touched only: only score, step or optimizer slots changed."


def series(history: History, changes: dict[str, list[Difference | None]]) -> str:
    """Return the section as HTML. changes: for each variable, as History.changes returns."""
    several = len(changes) > 1
    growth, note = _growth(history)
    content = [card("Rows by variable" if several else "Rows", growth, note), card("Bytes", *_bytes(history))]
    if any(found for each in changes.values() for found in each):
        title = "Rows that changed, all variables" if several else "Rows that changed"
        content.append(card(title, churn(history, list(changes.values())), CHURN_NOTE))
    return heading("The series", "series") + cards(content)


def rows_of(history: History, variable: str) -> tuple[str, str]:
    """Return a chart of a variable's rows, and a note."""
    numbers = history.rows(variable)
    known = [each for each in numbers if each is not None]
    low = 0.0 if min(known) < 0.7 * max(known) else max(0.0, min(known) - (max(known) - min(known)) - 1)
    up = Linear(low, max(known) + (0.05 * (max(known) - low) or 1.0), whole=True)
    chart = lines(f"rows of {variable}", [Line(variable, numbers)], *_along(history), up)
    return chart, "The axis does not begin at 0." if low else ""


def churn(history: History, changes: Sequence[Sequence[Difference | None]]) -> str:
    """Return a chart of how many rows changed, and how, summed over variables."""
    parts = []
    for name, colour in (("added", "added"), ("moved", "moved"), ("touched only", "quiet"), ("removed", "removed")):
        values = [sum(_count(found, name) for found in column if found) for column in zip(*changes, strict=True)]
        parts.append(Part(name, colour, values, _tips(history, [f"{value:,} {name}" for value in values])))
    return columns("rows changed by checkpoint", parts, _dates(history))


def _count(found: Difference, name: str) -> int:
    return found.changed - found.moved if name == "touched only" else int(getattr(found, name))


def _growth(history: History) -> tuple[str, str]:
    """Return a chart of the rows of the largest variables and of all others together, and a note."""
    names = sorted({name for checkpoint in history.checkpoints for name in checkpoint.variables})
    rows = {name: history.rows(name) for name in names}
    names.sort(key=lambda name: -max(each or 0 for each in rows[name]))
    drawn = [Line(name, rows[name]) for name in names]
    if len(drawn) > COLOURS:
        others = [
            sum(each or 0 for each in column)
            for column in zip(*(rows[name] for name in names[COLOURS - 1 :]), strict=True)
        ]
        drawn = [*drawn[: COLOURS - 1], Line(f"{len(names) - COLOURS + 1} others", others)]
    along, at = _along(history)
    numbers = [each for line in drawn for each in line.values if each]
    least = [max(each or 0 for each in line.values) for line in drawn]
    short = at[-1] - at[0] < 3600
    note = f"{moment(at[0], seconds=short)} to {moment(at[-1], seconds=short)}."
    if numbers and max(least) >= _LOG_FROM * max(1, min(each for each in least if each)):
        drawn = [Line(line.name, [each or None for each in line.values]) for line in drawn]
        up: Scale = Log(10.0 ** math.floor(math.log10(min(numbers))), 1.2 * max(numbers), whole=True)
        note += " A log scale, because the variables differ much in size."
    else:
        up = Linear(0, top(numbers), whole=True)
    return lines("rows by checkpoint", drawn, along, at, up), note


def _bytes(history: History) -> tuple[str, str]:
    all_bytes, new = [checkpoint.nbytes for checkpoint in history.checkpoints], history.new_bytes()
    shared = [one - other for one, other in zip(all_bytes, new, strict=True)]
    power = min(4, max(0, int(math.log(max([*all_bytes, 1]), 1024))))
    unit, suffix = 1024.0**power, (" B", " KiB", " MiB", " GiB", " TiB")[power]
    parts = [
        Part(
            name,
            colour,
            [each / unit for each in numbers],
            _tips(history, [f"{size(each)} {name}" for each in numbers]),
        )
        for name, colour, numbers in (("new", "moved", new), ("shared with the previous checkpoint", "quiet", shared))
    ]
    note = f"{size(sum(new))} in total; files shared with the previous checkpoint are counted once."
    return columns("bytes by checkpoint", parts, _dates(history), suffix=suffix), note


def _along(history: History) -> tuple[Time, list[float]]:
    at = [checkpoint.created for checkpoint in history.checkpoints]
    room = max(0.03 * (max(at) - min(at)), 0.5)
    return Time(min(at) - room, max(at) + room), at


def _tips(history: History, texts: Sequence[str]) -> list[str]:
    return [
        f"{checkpoint.path.name}, {moment(checkpoint.created)}: {each}"
        for checkpoint, each in zip(history.checkpoints, texts, strict=True)
    ]


def _dates(history: History) -> list[tuple[int, str]]:
    """Return (column, label) for the columns to label: the first of a day, a minute or a second, as many as fit."""
    made = [datetime.fromtimestamp(checkpoint.created) for checkpoint in history.checkpoints]
    minutes = {each.replace(second=0, microsecond=0) for each in made}
    form = "%b %d" if made[-1].date() != made[0].date() else "%H:%M" if len(minutes) > 1 else "%H:%M:%S"
    labels = [each.strftime(form) for each in made]
    gap = len(labels) * (len(labels[0]) * LETTER + GAP)
    found: list[tuple[int, str]] = []
    for at, label in enumerate(labels):
        if not found or (label != labels[at - 1] and at - found[-1][0] >= gap):
            found.append((at, label))
    return found
