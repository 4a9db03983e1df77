"""`kvemb verify` and `kvemb repair`: check a checkpoint or a store for damage, and save everything readable."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import kvemb
from kvemb.errors import StoreNotFound
from kvemb.tools.screen import AsJson, Quiet, Screen, counted, local_path, size

# How many lost key ranges of a variable are listed.
LISTED_GAPS = 5


def verify(
    path: Annotated[
        str,
        typer.Argument(
            help="A checkpoint; a store that no process has open for writing; a local series, whose newest is checked; "
            "or the place to which a push or a cluster writes, a URL or a directory: all its checkpoints are checked, "
            "or only PLACE/00000042."
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, record and key.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check a checkpoint, a closed store or a URL, and name every damaged file; exits with 1 if there is any.

    Example: kvemb verify checkpoints/00000042 --deep
    """
    screen = Screen(quiet, as_json)
    with screen.reading("verify") as update:
        found = kvemb.verify(path, deep=deep, progress=update)
    for line in (*found.findings, *found.notes):
        screen.print_line(line)
    sound = "sound: every byte was read" if deep else "no damage found; tables were not read: --deep reads them"
    lines = [("outcome", sound if found else f"damaged: findings above, {len(found.findings)}")]
    lines += [(name, counted(rows, "row")) for name, rows in found.rows.items()]
    lines.append(("files", f"{found.files:,}, {size(found.nbytes)}"))
    screen.close(f"kvemb verify {path}", lines, {**asdict(found), "path": str(path), "sound": bool(found)})
    if not found:
        raise typer.Exit(1)


def repair(
    path: Annotated[str, typer.Argument(help="A damaged checkpoint, store or URL of push; it is not changed.")],
    out: Annotated[Path, typer.Argument(parser=local_path, help="A new directory for the store.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write everything readable in a damaged store to a new one, and list what is lost; exits with 1 if rows are lost.

    If there is an undamaged checkpoint, use `kvemb restore` instead. Example: kvemb repair store repaired
    """
    screen = Screen(quiet, as_json)
    with screen.reading("repair") as update:
        try:
            done = kvemb.repair(path, out, progress=update)
        except StoreNotFound:
            kvemb.Checkpoint.at(path)  # raises an error that says what the path is instead

            raise
    for line in done.damages:
        screen.print_line(line)
    lines = [("made", str(out)), ("damages", f"{len(done.damages)}")]
    for name, saved in done.variables.items():
        lines.append((name, f"{counted(saved.rows, 'row')} saved, {saved.lost:,} lost"))
        lines += [("", f"keys {first} to {last} left out") for first, last in saved.gaps[:LISTED_GAPS]]
        if more := saved.gaps[LISTED_GAPS:]:
            lines.append(("", f"and {len(more):,} more ranges; --json lists all"))
    lines.append(("from the log", counted(done.logged, "row")))
    screen.close(f"kvemb repair {path}", lines, {**asdict(done), "source": str(done.source), "out": str(out)})
    if any(saved.lost for saved in done.variables.values()):
        raise typer.Exit(1)
