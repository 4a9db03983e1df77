"""The command `kvemb bench tier`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvemb.tools.bench.options import AsJson, Batch, Dim, Runs, Steps
from kvemb.tools.bench.tier.cases import DEFAULTS, HOT, ROWS, ZIPF, Settings, plan
from kvemb.tools.limits import MAX_PAUSE_S, MAX_ROWS, MAX_RUNS, MAX_ZIPF, no_nan, no_nans
from kvemb.tools.screen import Screen


def tier(
    rows: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MAX_ROWS, help="Table sizes, one --rows each; the first one is measured in full."),
    ] = None,
    hot: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=1.0, callback=no_nans, help="Shares of the rows that are hot, one --hot each."),
    ] = None,
    zipf: Annotated[
        list[float] | None,
        typer.Option(min=0.0, max=MAX_ZIPF, callback=no_nans, help="Zipf exponents of popularity, one --zipf each."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Measure every hot share and skew at every size.")
    ] = False,
    dim: Dim = DEFAULTS.dim,
    batch: Batch = DEFAULTS.batch,
    steps: Steps = DEFAULTS.steps,
    runs: Runs = DEFAULTS.runs,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=MAX_PAUSE_S, callback=no_nan, help="The most seconds of one run's steps.")
    ] = DEFAULTS.seconds,
    checkpoints: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Checkpoints of the series.")] = (
        DEFAULTS.checkpoints
    ),
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, writable=True, help="The folder for tables and results, tier.jsonl."
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the results in --folder; measure what is missing.")] = (
        False
    ),
    page: Annotated[
        Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Write a page with charts of all results.")
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", exists=True, dir_okay=False, help="The --json output of another benchmark, for the page."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the closing table.")] = False,
    json: AsJson = False,
) -> None:
    """Train over sizes, hot shares and skews, page cache warm and cold, compared with rocksdict; write a page."""
    from kvemb.tools.bench.tier.run import run

    cases = plan(rows or ROWS, hot or HOT, zipf or ZIPF, everywhere)
    settings = Settings(dim, batch, steps, runs, seconds, checkpoints)
    run(cases, settings, Screen(quiet, json), folder, resume=resume, page=page, others=others).show(json)
