"""Options that several commands of `kvemb bench` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvemb.tools.limits import MAX_BATCH, MAX_DIM, MAX_MIB, MAX_ROWS, MAX_RUNS, MAX_ZIPF, no_nan

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, writable=True, help="The folder for the tables. Default: a temporary one."
    ),
]
Rows = Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Rows in the table.")]
Sizes = Annotated[
    list[int], typer.Option("--rows", min=1, max=MAX_ROWS, help="Rows in the table. May be given several times.")
]
Tables = Annotated[int, typer.Option(min=1, max=1000, help="Number of tables.")]
Dim = Annotated[int, typer.Option(min=1, max=MAX_DIM, help="Numbers in a row, float32.")]
Dims = Annotated[
    list[int],
    typer.Option("--dim", min=1, max=MAX_DIM, help="Numbers in a row, float32. May be given several times."),
]
HotRows = Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Rows in the hot tier.")]
Batch = Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Keys per call.")]
Batches = Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Calls per run.")]
Steps = Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Training steps per run.")]
Runs = Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of runs. The result is their median.")]
Share = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, callback=no_nan, help="Share of the rows that changes between two checkpoints."),
]
Exponent = Annotated[
    float,
    typer.Option(min=0.0, max=MAX_ZIPF, callback=no_nan, help="Exponent of the Zipf law by which keys are drawn."),
]
BudgetMib = Annotated[int, typer.Option(min=4, max=MAX_MIB, help="Memory budget of both sides, in MiB.")]

DIMS = [8, 16, 32, 64, 128]
