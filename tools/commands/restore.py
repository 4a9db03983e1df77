"""`kvemb restore`: restore a checkpoint to a new store, as kvemb.restore does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import kvemb
from kvemb import bulk
from kvemb.masking import masked
from kvemb.tools.failures import WrongUsage
from kvemb.tools.reading import READ_BUDGET
from kvemb.tools.screen import PLACE, AsJson, Quiet, Screen, counted, local_path, size


def restore(
    path: Annotated[str, typer.Argument(metavar="PATH", help=PLACE)],
    out: Annotated[Path, typer.Argument(metavar="OUT", parser=local_path, help="A new directory, for the store.")],
    variable: Annotated[
        list[str] | None, typer.Option(help="Restore only this variable. May be given several times.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a new store from a checkpoint, to continue training.

    On one filesystem, store and checkpoint share files by hard links. The checkpoint never changes.

    Example: kvemb restore checkpoints/00000042 store
    """
    place = bulk.Place(path)
    if place.here is not None:
        kvemb.Checkpoint(place.here)  # raises an error that says what the path is instead
    known = sorted(place.described().variables)
    if unknown := [name for name in variable or [] if name not in known]:
        raise WrongUsage(f"{masked(place.name)} has no variable {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    screen = Screen(quiet, as_json)
    with screen.counting("restore") as update:
        how: dict[str, Any] = {"variables": variable or None, "progress": update}
        kvemb.restore(place.name, out, memory_budget=READ_BUDGET, **how).close()
    made = kvemb.Checkpoint.at(out)
    rows = {name: entry.rows for name, entry in sorted(made.variables.items())}
    lines = [
        ("made", f"{out}, {size(made.nbytes)}"),
        ("from", masked(place.name)),
        *((name, counted(count, "row")) for name, count in rows.items()),
    ]
    summary = {"out": str(out), "checkpoint": masked(place.name), "rows": rows, "nbytes": made.nbytes}
    screen.close(f"kvemb restore {path}", lines, summary)
