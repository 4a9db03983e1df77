"""`kvemb restore`: make a store of a checkpoint, as kvemb.restore does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import kvemb
import kvemb.cluster
from kvemb.tools.failures import WrongUsage
from kvemb.tools.reading import newest
from kvemb.tools.screen import AsJson, Quiet, Screen, local_path, size

# No rows are looked up, so this is the smallest budget of a store.
BUDGET = "32MiB"


def restore(
    checkpoint: Annotated[
        Path, typer.Argument(parser=local_path, help="A checkpoint, which is not changed; of a series, its newest.")
    ],
    path: Annotated[Path, typer.Argument(parser=local_path, metavar="STORE", help="A new directory for the store.")],
    variable: Annotated[
        list[str] | None, typer.Option(help="Restore only this variable; may be given several times.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a store of a checkpoint, to train on; on one filesystem they share their files.

    Example: kvemb restore checkpoints/00000042 store
    """
    checkpoint = newest(checkpoint)
    source = (
        kvemb.cluster.latest(checkpoint)[1] if kvemb.cluster.is_series(checkpoint) else kvemb.Checkpoint(checkpoint)
    )
    known = sorted(source.variables)
    if unknown := [name for name in variable or [] if name not in known]:
        raise WrongUsage(f"{checkpoint} has no variable {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    kvemb.restore(checkpoint, path, memory_budget=BUDGET, variables=variable or None).close()
    made = kvemb.Checkpoint.at(path)
    rows = {name: entry.rows for name, entry in sorted(made.variables.items())}
    lines = [
        ("made", f"{path}, {size(made.nbytes)}"),
        ("from", str(checkpoint)),
        *((name, f"{count:,} rows") for name, count in rows.items()),
    ]
    summary = {"out": str(path), "checkpoint": str(checkpoint), "rows": rows, "nbytes": made.nbytes}
    Screen(quiet, as_json).close(f"kvemb restore {checkpoint}", lines, summary)
