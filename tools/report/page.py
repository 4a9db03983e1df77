"""One HTML page about a checkpoint, a store or a series of checkpoints.

The page needs no network: charts are inline SVG (kvemb.tools.report.charts), styles are inline, there is no script.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kvemb.errors import Corruption
from kvemb.tools.destinations import atomic_output
from kvemb.tools.inspect import Info, info
from kvemb.tools.reading import Progress, kind_name
from kvemb.tools.report.axes import local_time, zone
from kvemb.tools.report.history import SHOWN, History, history
from kvemb.tools.report.markup import facts, heading, name, notice, table
from kvemb.tools.report.series_section import series
from kvemb.tools.report.style import page
from kvemb.tools.report.variable import VariableData, not_finite, shape, variable
from kvemb.tools.screen import size
from kvemb.tools.table_stats import stats


@dataclass
class Report:
    """A page that was written. out: its path or URL, as given. damages: error messages, by the checkpoint's name."""

    out: str
    damages: dict[str, str]


def report(path: str | os.PathLike[str], out: str | os.PathLike[str], *, progress: Progress | None = None) -> Report:
    """Write a page about path to out, a new file or a URL that fsspec reaches.

    path: a checkpoint, a store, or the root of a kvemb.CheckpointManager, whose newest readable checkpoint is shown in
    detail. The page names what is damaged and shows the rest. progress(done, total): rows.

    Raises StoreNotFound if path is none of these; FileExistsError; Corruption if nothing can be read.
    """
    root = Path(path)
    past = history(root)
    newest_path = past.checkpoints[-1].path if past.checkpoints else root
    newest = info(newest_path)
    variables, done, total = [], 0, sum(each.rows for each in newest.variables)
    for each in newest.variables:
        found = VariableData(each, changes=past.changes(each.name))
        try:
            found.stats = stats(newest_path, each.name, projected=True)
        except Corruption as error:
            found.damage = past.damages.setdefault(newest_path.name, str(error))
        variables.append(found)
        done += each.rows
        if progress is not None:
            progress(done, total)
    parts = [_head(root, newest_path, newest, past), _overview(variables, past), _marks(newest)]
    if len(past.checkpoints) > 1:
        parts.append(series(past, {each.info.name: each.changes for each in variables}))
    parts += [variable(each, past, f"v{at}") for at, each in enumerate(variables)]
    with atomic_output(out, folder=False) as made:
        made.write_bytes(page(f"{root.name} - kvemb report", "".join(parts)).encode("utf-8", "backslashreplace"))
    return Report(os.fspath(out), past.damages)


def _head(root: Path, newest_path: Path, newest: Info, past: History) -> str:
    """Return the head of the page: path, totals, and warnings about damage."""
    lines = [
        ("rows", f"{sum(each.rows for each in newest.variables):,}"),
        ("variables", f"{len(newest.variables):,}"),
        ("files", f"{len(newest.files):,}, {size(newest.nbytes)}"),
        ("calls that recorded uses", f"{newest.recording_calls:,}"),
        (f"{newest.kind} of", f"{local_time(newest.created)} {zone()}"),
    ]
    if past.checkpoints:
        lines.insert(0, ("newest checkpoint" if not past.damages else "newest that can be read", newest_path.name))
        shown = len(past.checkpoints)
        lines.append(("checkpoints shown", f"{shown}, the newest" if shown == SHOWN else str(shown)))
    warned = [notice(f"{which} cannot be read:", why) for which, why in sorted(past.damages.items())]
    return f'<h1 id="top">{name(str(root))}</h1>{facts(lines)}{"".join(warned)}'


def _marks(newest: Info) -> str:
    """Return a table of the marks of a store, "" if there is none."""
    lines = [
        [
            name(each.name) if each.name is not None else '<span class="sub">none</span>',
            escape(local_time(each.created)),
            size(each.kept_bytes),
            name(each.path),
        ]
        for each in newest.marks
    ]
    if not lines:
        return ""
    note = '<p class="note">Each is read as a checkpoint. It alone keeps so many bytes of files.</p>'
    return heading("Marks", "marks") + table(["name", "made", "keeps", "path"], lines, words=(1, 3)) + note


def _overview(variables: list[VariableData], past: History) -> str:
    """Return the table of contents: one line for each variable."""
    names = ["variable", "rows", "values", "optimizer", "policy", "not finite"]
    lines = []
    for at, each in enumerate(variables):
        described = each.info.described
        last = each.changes[-1] if each.changes else None
        moved = ""
        if last is not None and (last.added or last.removed):
            moved = f'<br> <span class="sub small">+{last.added:,} &minus;{last.removed:,} since the previous</span>'
        bad = "cannot be read" if each.damage else not_finite(each)
        lines.append(
            [
                f'<a href="#v{at}">{name(each.info.name)}</a>',
                f"<span>{each.info.rows:,}{moved}</span>",
                escape(shape(described)),
                escape(kind_name(described["optimizer"])),
                escape(kind_name(described["policy"])),
                f'<span class="bad">{escape(bad)}</span>' if bad else '<span class="sub">none</span>',
            ]
        )
    first = '<p><a href="#series">The series</a></p>' if len(past.checkpoints) > 1 else ""
    return f"<nav>{first}{table(names, lines, 'overview', words=(3, 4, 5))}</nav>"
