"""`kvemb bench tier`: training steps by hot share, skew and size, a series of checkpoints and a restart.

The peer is a loop written by hand on rocksdict. The results are kept in --folder (tier.jsonl), so that an interrupted
run can be continued.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvemb.tools.bench.options import Batch, Dim, Folder, Runs, Sizes, Steps
from kvemb.tools.bench.results import Report
from kvemb.tools.bench.tier.cases import Settings, plan
from kvemb.tools.limits import MAX_PAUSE_S, MAX_RUNS, MAX_ZIPF, no_nan, no_nans

# The default settings and cases.
ROWS = [4_000_000, 1_000_000, 16_000_000]
HOT = [0.01, 0.05, 0.1, 0.25, 0.5]
ZIPF = [0.8, 1.0, 1.2]
DEFAULTS = Settings(dim=32, batch=8192, steps=40, runs=3, seconds=1.5, checkpoints=24)


def run(
    rows: Sizes = ROWS,
    hot: Annotated[
        list[float],
        typer.Option(
            min=0.0, max=1.0, callback=no_nans, help="Share of the rows that are hot. May be given several times."
        ),
    ] = HOT,
    zipf: Annotated[
        list[float],
        typer.Option(
            min=0.0,
            max=MAX_ZIPF,
            callback=no_nans,
            help="Exponent of the Zipf law by which keys are drawn. May be given several times.",
        ),
    ] = ZIPF,
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
    folder: Folder = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results in --folder, and measure what is missing.")
    ] = False,
) -> Report:
    """Train tables of several sizes, hot shares and skews. Peer: a loop written by hand on rocksdict.

    Measures with a warm and with a cold page cache; the first of --rows at every hot share and skew. --folder also gets
    the results (tier.jsonl). Needs Linux.
    """
    from kvemb.tools.bench.tier.run import measured

    settings = Settings(dim, batch, steps, runs, seconds, checkpoints)
    return measured(plan(rows, hot, zipf), settings, folder, resume=resume)
