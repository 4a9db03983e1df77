"""The output of commands: a progress bar and milestones while they run, and closing lines or their JSON.

The bar is shown only on a terminal; in a pipe the milestones are plain lines. `--quiet` prints only the closing lines,
`--json` only the JSON. No line is folded, so that names stay whole and lines can be searched. Not thread-safe.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from kvemb.masking import masked
from kvemb.tools.destinations import is_url
from kvemb.tools.failures import WrongUsage
from kvemb.tools.stopping import check

# What is printed before values is padded to the longest of them, or to this many cells.
_WIDE = 28

# The help text for the argument of commands that read a checkpoint.
PLACE = (
    "A checkpoint, a store, or a series of checkpoints (local, at a URL, or of a cluster). A store is read at its last "
    "durable point, a series at its newest checkpoint; SERIES/00000042 selects another."
)
# How every command that works on one variable takes its name.
Variable = Annotated[str | None, typer.Option(help="The variable's name. Required if there are several.")]
Every = Annotated[bool, typer.Option("--all", help="Take all variables, in the order of their names.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide the progress bar.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
Summary = dict[str, object]
Advance = Callable[[int, str], None]


def check_one(variable: str | None, every: bool) -> None:
    """Raise WrongUsage if both --variable and --all are given."""
    if every and variable is not None:
        raise WrongUsage("--all takes all variables, --variable one of them; give only one of the two options")


def local_path(text: str) -> Path:
    """Return an argument as a path. Raises BadParameter for a URL: Path would drop one of its slashes."""
    if is_url(text):
        raise typer.BadParameter(
            f"{text} is a URL, but this must be a path on this machine; copy checkpoints here with kvemb pull"
        )
    return Path(text)


def counted(count: int, what: str) -> str:
    """Return a count in words: 1, "row" -> '1 row'; 2000, "row" -> '2,000 rows'."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def size(count: float) -> str:
    """Return a number of bytes in words: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


class Screen:
    """The output of one command: a progress bar, milestones and the result.

    `_console` is None if only the result is printed.
    """

    def __init__(self, quiet: bool, as_json: bool) -> None:
        self._as_json = as_json
        # Lines contain names and paths from users: their brackets and colons must not be read as markup.
        self._closing = Console(highlight=False, markup=False, emoji=False)
        self._console = None if quiet or as_json else self._closing

    @property
    def _has_bar(self) -> bool:
        return self._console is not None and self._console.is_terminal and sys.stdout.isatty()

    def milestone(self, line: str) -> None:
        """Print a milestone."""
        if self._console is not None:
            self._console.print(line, soft_wrap=True)

    @contextmanager
    def progress(self, task: str, total: int, note: str = "") -> Iterator[Advance]:
        """Yield `advance(done, note)`: done of `total` so far, and a text to show beside the bar.

        note: the text before the first call.
        """
        if not self._has_bar:
            yield lambda done, note: check()
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console) as bar:
            number = bar.add_task(task, total=total, note=note)

            def advance(done: int, note: str) -> None:
                check()
                bar.update(number, completed=done, note=note)

            yield advance

    def reading(self, task: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Yield `update(done, total)` for bytes read; total is known when reading begins."""
        return self._of_unknown_total(task, DownloadColumn(), TransferSpeedColumn())

    def counting(self, task: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Yield `update(done, total)` for rows; a total of 0 means that it is not known."""
        columns = (MofNCompleteColumn(), TextColumn("rows"), TextColumn("{task.fields[rate]}"))
        return self._of_unknown_total(task, *columns)

    @contextmanager
    def _of_unknown_total(self, task: str, *columns: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
        if not self._has_bar:
            yield lambda done, total: check()
            return
        shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
        with Progress(*shown, console=self._console, transient=True) as bar:
            number, began = bar.add_task(task, total=None, rate=""), time.perf_counter()

            def update(done: int, total: int) -> None:
                check()
                rate = f"{done / max(1e-9, time.perf_counter() - began):,.0f}/s"
                bar.update(number, completed=done, total=total or None, rate=rate)

            yield update

    def print_line(self, line: str) -> None:
        """Print a line of the result, also with --quiet, but not with --json, whose summary contains it."""
        if not self._as_json:
            self._closing.print(line, soft_wrap=True)

    def close(self, title: str, lines: list[tuple[str, str]], summary: Summary) -> None:
        """Print a title and (what, value) lines, or with --json the summary as one JSON object."""
        if self._as_json:
            print(to_json(summary))
            return
        self._closing.print(masked(title), soft_wrap=True)
        wide = min(_WIDE, max((cell_len(what) for what, _ in lines), default=0))
        for what, value in lines:
            self._closing.print(f"  {what}{' ' * (wide - cell_len(what))}  {value}", soft_wrap=True)


def to_json(summary: object, indent: int | None = None) -> str:
    """Return JSON in which numbers that are not finite are the texts "NaN", "Infinity" and "-Infinity".

    JSON has no such numbers; Python's float() and JavaScript's Number() read these texts back.
    """
    return json.dumps(_for_json(summary), indent=indent, allow_nan=False)


def _for_json(value: object) -> object:
    if isinstance(value, dict):
        return {name: _for_json(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
