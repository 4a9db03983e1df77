"""`kvemb push` and `kvemb pull`: copy checkpoints of a series to and from any URL that fsspec reaches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import kvemb
from kvemb.tools.limits import MAX_JOBS, MAX_SERIES
from kvemb.tools.screen import AsJson, Quiet, Screen, counted, local_path, size

Number = Annotated[
    int | None, typer.Option(min=1, max=MAX_SERIES, help="The checkpoint's number. Default: the newest.")
]
Jobs = Annotated[int, typer.Option(min=1, max=MAX_JOBS, help="Number of files to transfer at once.")]

TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also write where the newest checkpoint is of another store.")
]


def push(
    root: Annotated[
        Path,
        typer.Argument(
            metavar="SERIES", parser=local_path, help="A local series of checkpoints (kvemb.CheckpointManager)."
        ),
    ],
    url: Annotated[str, typer.Argument(metavar="URL", help="The destination: a directory, s3://bucket/prefix, ...")],
    number: Number = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SERIES, help="Keep only this many of the store's checkpoints there: the newest."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read the files at the destination, and replace damaged ones.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Send the whole checkpoint, not only changed rows.")] = False,
    take_over: TakeOver = False,
    jobs: Jobs = 8,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint of a local series to a remote place.

    Sends only the rows that changed since a checkpoint that is already there, or the whole checkpoint if necessary.

    Example: kvemb push checkpoints s3://bucket/model
    """
    screen = Screen(quiet, as_json)
    with screen.reading("push") as update:
        series = kvemb.CheckpointManager(root)
        how: dict[str, Any] = {"verify": verify, "whole": whole, "take_over": take_over}
        done = series.push(url, number=number, keep=keep, **how, jobs=jobs, progress=update)
    lines = [
        ("checkpoint", f"{done.number:08d}"),
        ("sent", f"{counted(done.files, 'file')}, {size(done.nbytes)}"),
        ("stored", f"as a base and {counted(done.deltas, 'delta')}" if done.deltas else "whole"),
        ("there already", counted(done.shared, "file")),
    ]
    screen.close(f"kvemb push {root} {url}", lines, asdict(done))


def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="The source: a directory, s3://bucket/prefix, ...")],
    root: Annotated[
        Path,
        typer.Argument(
            metavar="SERIES", parser=local_path, help="The local series. It is created if it does not exist."
        ),
    ],
    number: Number = None,
    take_over: TakeOver = False,
    jobs: Jobs = 8,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint from a remote place to a local series.

    Fetches only files that no local checkpoint has, and verifies each.

    Example: kvemb pull s3://bucket/model checkpoints
    """
    screen = Screen(quiet, as_json)
    with screen.reading("pull") as update, kvemb.CheckpointManager(root) as manager:
        existing = {manager.path(each) for each in manager.numbers()}
        found = manager.pull(url, number=number, take_over=take_over, jobs=jobs, progress=update)
    rows = sum(entry.rows for entry in found.variables.values())
    known = found.path in existing
    lines = [
        ("checkpoint", f"{found.path}{', was here already' if known else ''}"),
        ("holds", f"{counted(rows, 'row')}, {size(found.nbytes)}"),
    ]
    summary = {"path": str(found.path), "id": found.id, "rows": rows, "nbytes": found.nbytes, "was_here": known}
    screen.close(f"kvemb pull {url} {root}", lines, summary)
