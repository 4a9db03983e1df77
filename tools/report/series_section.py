"""The report's section about a series: rows by variable over time, bytes, and how many rows changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from kvemb.tools.diff import Difference
from kvemb.tools.report.axes import GAP, LETTER, Linear, Log, Scale, Time, local_time, top
from kvemb.tools.report.charts import COLOURS, Curve, Part, columns, lines
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
    curve = _curve(history, variable, history.rows(variable))
    known = [rows for _, rows in curve.points]
    low = 0.0 if min(known) < 0.7 * max(known) else max(0.0, min(known) - (max(known) - min(known)) - 1)
    up = Linear(low, max(known) + (0.05 * (max(known) - low) or 1.0), whole=True)
    chart = lines(f"rows of {variable}", [curve], _along(history), up)
    return chart, "The axis does not begin at 0." if low else ""


def _curve(history: History, name: str, values: Sequence[int | None], colour: int = 0) -> Curve:
    """Return a curve over time. values: of each checkpoint, None if there is none."""
    dated = zip(history.checkpoints, values, strict=True)
    return Curve(name, [(checkpoint.created, value) for checkpoint, value in dated if value is not None], colour)


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
    alike: dict[tuple[int | None, ...], list[str]] = {}  # their lines would hide each other
    for name in names:
        alike.setdefault(tuple(history.rows(name)), []).append(name)
    lines_of = sorted(alike.items(), key=lambda each: -max(count or 0 for count in each[0]))
    rows = [(_joined(those), list(counts)) for counts, those in lines_of]
    if len(rows) > COLOURS:
        others = [history.rows(name) for _, those in lines_of[COLOURS - 1 :] for name in those]
        together = [sum(count or 0 for count in column) for column in zip(*others, strict=True)]
        rows[COLOURS - 1 :] = [(f"{len(others)} others together", together)]
    first, *_, last = (checkpoint.created for checkpoint in history.checkpoints)
    short = last - first < 3600
    note = f"{local_time(first, seconds=short)} to {local_time(last, seconds=short)}."
    numbers = [count for _, counts in rows for count in counts if count]
    most = [max(count or 0 for count in counts) for _, counts in rows]
    if numbers and max(most) >= _LOG_FROM * max(1, min(each for each in most if each)):
        rows = [(name, [count or None for count in counts]) for name, counts in rows]
        up: Scale = Log(10.0 ** math.floor(math.log10(min(numbers))), 1.2 * max(numbers), whole=True)
        note += " A log scale, because the variables differ much in size."
    else:
        up = Linear(0, top(numbers), whole=True)
    curves = [_curve(history, name, counts, colour) for colour, (name, counts) in enumerate(rows)]
    return lines("rows by checkpoint", curves, _along(history), up), note


def _joined(names: list[str]) -> str:
    """Return the name of a line of several variables."""
    more = f" and {len(names) - 2} others" if len(names) > 3 else ""
    return (", ".join(names[:2]) if more else ", ".join(names)) + more


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


def _along(history: History) -> Time:
    at = [checkpoint.created for checkpoint in history.checkpoints]
    room = max(0.03 * (max(at) - min(at)), 0.5)
    return Time(min(at) - room, max(at) + room)


def _tips(history: History, texts: Sequence[str]) -> list[str]:
    return [
        f"{checkpoint.path.name}, {local_time(checkpoint.created)}: {each}"
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
