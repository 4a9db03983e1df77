"""`kvemb cluster status` and `reshard`: the checkpoints of a cluster, without the cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

import kvemb.cluster
from kvemb.masking import masked
from kvemb.tools.screen import AsJson, Quiet, Screen, counted, local_path

app = typer.Typer(help="Show a cluster's newest checkpoint, or rewrite it for another number of shards.")


@app.command()
def status(
    url: Annotated[str, typer.Argument(metavar="URL", help="A directory or a URL with the checkpoints of a cluster.")],
    as_json: AsJson = False,
) -> None:
    """Show a cluster's newest checkpoint: its number, time, shards, extra values, variables and rows.

    Example: kvemb cluster status checkpoints
    """
    number, found = kvemb.cluster.latest(url)
    rows = {name: entry.rows for name, entry in sorted(found.variables.items())}
    lines = [
        ("checkpoint", f"{number}, made {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found.created))}"),
        ("id", found.id),
        ("shards", f"{len(found.shards):,}"),
        *([("extra", json.dumps(found.extra))] if found.extra else []),
        *((name, counted(count, "row")) for name, count in rows.items()),
    ]
    summary: dict[str, Any] = {
        "url": masked(url),
        "number": number,
        "id": found.id,
        "created": found.created,
        "rows": rows,
    }
    summary["extra"] = found.extra
    summary["shards"] = [vars(shard) for shard in found.shards]
    Screen(False, as_json).close(f"kvemb cluster status {url}", lines, summary)


@app.command()
def reshard(
    url: Annotated[str, typer.Argument(metavar="URL", help="A directory or a URL with the checkpoints of a cluster.")],
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="Where to write the new checkpoint. It may be the same place as URL.")
    ],
    shards: Annotated[int, typer.Option(min=1, max=4096, help="Number of shards of the new checkpoint.")],
    scratch: Annotated[
        Path | None, typer.Option(parser=local_path, help="A directory for temporary files, one shard's at a time.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rewrite a cluster's newest checkpoint for another number of shards.

    Opening a cluster with another number of shards does the same; this command does it in advance.

    Example: kvemb cluster reshard checkpoints checkpoints --shards 8
    """
    screen = Screen(quiet, as_json)
    with screen.counting("reshard") as update:
        number = kvemb.cluster.reshard(url, out, shards=shards, scratch=scratch, progress=update)
    made = kvemb.cluster.latest(out, number=number)[1]
    rows = sum(entry.rows for entry in made.variables.values())
    lines = [("made", f"checkpoint {number} of {counted(shards, 'shard')}"), ("rows", f"{rows:,}")]
    summary = {"out": masked(out), "number": number, "shards": shards, "rows": rows}
    screen.close(f"kvemb cluster reshard {url} {out}", lines, summary)
