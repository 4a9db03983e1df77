"""`kvemb verify` and `kvemb repair`: check a checkpoint or a store for damage, and save everything readable."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import kvemb
from kvemb.errors import StoreNotFound
from kvemb.masking import masked
from kvemb.tools.screen import AsJson, Quiet, Screen, counted, local_path, size

# How many lost key ranges of a variable are listed.
LISTED_GAPS = 5


def verify(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A checkpoint, a store that no process has open for writing, or a series: local, or where a push or a "
            "cluster writes (a URL or a directory). Of a series all checkpoints are checked, or only the one named by "
            "PATH/00000042.",
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, record and key.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check a checkpoint, a closed store or a series for damage.

    Names every damaged file. The exit code is 1 if there is any.

    Example: kvemb verify checkpoints/00000042 --deep
    """
    screen = Screen(quiet, as_json)
    with screen.reading("verify") as update:
        found = kvemb.verify(path, deep=deep, progress=update)
    for line in (*found.findings, *found.notes):
        screen.print_line(line)
    sound = "sound: every byte was read" if deep else "no damage found; tables were not read: --deep reads them"
    lines = [("outcome", sound if found else f"damaged: {counted(len(found.findings), 'finding')}, above")]
    lines += [(name, counted(rows, "row")) for name, rows in found.rows.items()]
    lines.append(("files", f"{found.files:,}, {size(found.nbytes)}"))
    screen.close(f"kvemb verify {path}", lines, {**asdict(found), "path": masked(path), "sound": bool(found)})
    if not found:
        raise typer.Exit(1)


def repair(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A damaged checkpoint or store, or the URL of a push. It is not changed."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", parser=local_path, help="A new directory, for the store.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write everything that can be read of a damaged store to a new store.

    Lists what is lost. The exit code is 1 if rows are lost. If there is an undamaged checkpoint, use kvemb restore
    instead.

    Example: kvemb repair store repaired
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
