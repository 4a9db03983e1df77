"""`kvemb verify` and `kvemb repair`: whether a checkpoint or a store is sound, and saving what can be read of one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import kvemb
from kvemb.errors import StoreNotFound
from kvemb.tools.screen import AsJson, Quiet, Screen, local_path, size

# Key ranges of a variable that are told one by one.
TOLD_GAPS = 5


def verify(
    path: Annotated[
        Path, typer.Argument(parser=local_path, help="A checkpoint, or a store that nobody has open for writing.")
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, record and key.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a checkpoint or a closed store, naming the file; exit with 1 if anything is.

    Example: kvemb verify checkpoints/00000042 --deep
    """
    screen = Screen(quiet, as_json)
    with screen.reading("verify") as tell:
        found = kvemb.verify(path, deep=deep, progress=tell)
    for line in (*found.findings, *found.notes):
        screen.tell(line)
    sound = "sound: every byte was read" if deep else "no damage found; tables were not read: --deep reads them"
    lines = [("outcome", sound if found else f"damaged: findings above, {len(found.findings)}")]
    lines += [(name, f"{rows:,} rows") for name, rows in found.rows.items()]
    lines.append(("files", f"{found.files:,}, {size(found.nbytes)}"))
    screen.close(f"kvemb verify {path}", lines, {**asdict(found), "path": str(path), "sound": bool(found)})
    if not found:
        raise typer.Exit(1)


def repair(
    path: Annotated[Path, typer.Argument(parser=local_path, help="A damaged checkpoint or store; it is not changed.")],
    out: Annotated[
        Path, typer.Argument(parser=local_path, help="A new directory: the store that is made of what can be read.")
    ],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a new store of what can be read of a damaged one, and tell what is lost; exit with 1 if rows are.

    Restoring from a sound checkpoint is better where there is one. Example: kvemb repair store repaired
    """
    screen = Screen(quiet, as_json)
    with screen.reading("repair") as tell:
        try:
            done = kvemb.repair(path, out, progress=tell)
        except StoreNotFound:
            kvemb.Checkpoint.at(path)  # which says what is there instead
            raise
    for line in done.damages:
        screen.tell(line)
    lines = [("made", str(out)), ("damages", f"{len(done.damages)}")]
    for name, saved in done.variables.items():
        lines.append((name, f"{saved.rows:,} rows saved, {saved.lost:,} lost"))
        lines += [("", f"keys {first} to {last} left out") for first, last in saved.gaps[:TOLD_GAPS]]
        if more := saved.gaps[TOLD_GAPS:]:
            lines.append(("", f"and {len(more):,} more ranges; --json lists all"))
    lines.append(("from the log", f"{done.logged:,} rows"))
    screen.close(f"kvemb repair {path}", lines, {**asdict(done), "source": str(done.source), "out": str(out)})
    if any(saved.lost for saved in done.variables.values()):
        raise typer.Exit(1)
