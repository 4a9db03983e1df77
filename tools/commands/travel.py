"""`kvemb push` and `kvemb pull`: a series of checkpoints to and from anywhere that fsspec reaches."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import kvemb
from kvemb.tools.screen import AsJson, Quiet, Screen, local_path, size

Number = Annotated[int | None, typer.Option(min=1, help="The checkpoint's number; the newest without it.")]
Jobs = Annotated[int, typer.Option(min=1, help="Files that travel at once.")]


def push(
    root: Annotated[
        Path, typer.Argument(parser=local_path, help="A series of checkpoints here (kvemb.CheckpointManager).")
    ],
    url: Annotated[str, typer.Argument(help="Where to: a folder, s3://bucket/prefix, ...")],
    number: Number = None,
    keep: Annotated[int | None, typer.Option(min=1, help="How many of the newest stay there.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read what is there of it, and replace what changed.")
    ] = False,
    jobs: Jobs = 8,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint elsewhere: only files that are not there travel, and it appears there last.

    Example: kvemb push checkpoints s3://bucket/model
    """
    screen = Screen(quiet, as_json)
    with screen.reading("push") as tell:
        series = kvemb.CheckpointManager(root)
        done = series.push(url, number=number, keep=keep, verify=verify, jobs=jobs, progress=tell)
    lines = [
        ("checkpoint", f"{done.number:08d}"),
        ("sent", f"{done.files:,} files, {size(done.nbytes)}"),
        ("there already", f"{done.shared:,} files"),
    ]
    screen.close(f"kvemb push {root} {url}", lines, asdict(done))


def pull(
    url: Annotated[str, typer.Argument(help="Where from: a folder, s3://bucket/prefix, ...")],
    root: Annotated[
        Path, typer.Argument(parser=local_path, help="The series here that it becomes part of; made if it is missing.")
    ],
    number: Number = None,
    jobs: Jobs = 8,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint from elsewhere: only files that no checkpoint here has travel, and each is verified.

    Example: kvemb pull s3://bucket/model checkpoints
    """
    screen = Screen(quiet, as_json)
    with screen.reading("pull") as tell, kvemb.CheckpointManager(root) as manager:
        here = {manager.path(each) for each in manager.numbers()}
        found = manager.pull(url, number=number, jobs=jobs, progress=tell)
    rows = sum(entry.rows for entry in found.variables.values())
    known = found.path in here
    lines = [
        ("checkpoint", f"{found.path}{', was here already' if known else ''}"),
        ("holds", f"{rows:,} rows, {size(found.nbytes)}"),
    ]
    summary = {"path": str(found.path), "id": found.id, "rows": rows, "nbytes": found.nbytes, "was_here": known}
    screen.close(f"kvemb pull {url} {root}", lines, summary)
