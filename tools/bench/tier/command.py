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
        typer.Option(
            min=1,
            max=MAX_ROWS,
            help="Rows in the table. May be given several times; the first size is measured in full.",
        ),
    ] = None,
    hot: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0, max=1.0, callback=no_nans, help="Share of the rows that are hot. May be given several times."
        ),
    ] = None,
    zipf: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            max=MAX_ZIPF,
            callback=no_nans,
            help="Exponent of the Zipf law by which keys are drawn. May be given several times.",
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Measure every hot share and skew at every size.")
    ] = False,
    dim: Dim = DEFAULTS.dim,
    batch: Batch = DEFAULTS.batch,
    steps: Steps = DEFAULTS.steps,
    runs: Runs = DEFAULTS.runs,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.01, max=MAX_PAUSE_S, callback=no_nan, help="The steps of one run end after this many seconds."
        ),
    ] = DEFAULTS.seconds,
    checkpoints: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Number of checkpoints in the series.")] = (
        DEFAULTS.checkpoints
    ),
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            writable=True,
            help="The folder for the tables, and for the results (tier.jsonl).",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results in --folder, and measure what is missing.")
    ] = (False),
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Write a Markdown page of all results, and its charts."),
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            exists=True,
            dir_okay=False,
            help="Add the --json output of another benchmark to the page. May be given several times.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the closing table.")] = False,
    json: AsJson = False,
) -> None:
    """Train tables of several sizes, hot shares and skews. Peer: a loop written by hand on rocksdict.

    Measures with a warm and with a cold page cache. With --out, writes a page of the results. Needs Linux.
    """
    from kvemb.tools.bench.tier.run import run

    cases = plan(rows or ROWS, hot or HOT, zipf or ZIPF, everywhere)
    settings = Settings(dim, batch, steps, runs, seconds, checkpoints)
    run(cases, settings, Screen(quiet, json), folder, resume=resume, page=out, others=others).show(json)
