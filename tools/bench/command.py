"""`kvemb bench`: measures kvemb and a peer in the same run, and compares the results with the required ones (bars).

Each benchmark is a file with a function `run`: its arguments are the command's options, its docstring is the help, and
it returns a Report. Kernels are compiled before it is called. The bars are for the default sizes. The two sides take
turns, because the speed of a shared machine varies: compare the ratios, not the rates. The tables take disk space in
--folder, and are deleted afterwards.

The files are imported for every command of `kvemb`, so they import large packages where they use them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from kvemb.tools.bench.cluster import ranks, reshard
from kvemb.tools.bench.cluster import shards as cluster
from kvemb.tools.bench.cold import cold, disk, hitrate, larger, memory, prefetch, spent, tables, train
from kvemb.tools.bench.disk import checkpoint, export, follow, marks, series, serve
from kvemb.tools.bench.gpu import run as gpu
from kvemb.tools.bench.hot import criteo, features, keras, lookup, pool, small, strings, torch, upsert
from kvemb.tools.bench.measure import compile_seconds
from kvemb.tools.bench.options import AsJson
from kvemb.tools.bench.results import Report

HOT = {"lookup": lookup, "upsert": upsert, "gpu": gpu, "pool": pool, "small": small, "torch": torch}
KEYS = {"strings": strings, "criteo": criteo}
FITTED = {"keras": keras}
MANY = {"features": features, "tables": tables, "spent": spent, "cluster": cluster, "ranks": ranks, "reshard": reshard}
COLD = {
    "train": train,
    "cold": cold,
    "disk": disk,
    "larger": larger,
    "prefetch": prefetch,
    "hitrate": hitrate,
    "memory": memory,
}
DISK = {"checkpoint": checkpoint, "marks": marks, "series": series, "follow": follow, "serve": serve, "export": export}

app = typer.Typer(help="Measure kvemb and a peer, in turns in the same run.", no_args_is_help=True)


def command_of(name: str, run: Callable[..., Report]) -> Callable[..., None]:
    """Return the command of a benchmark: its options and --json. It prints the report."""

    @wraps(run)
    def command(*, json: bool, **options: Any) -> None:
        compiled = compile_seconds()
        report = run(**options)
        report.facts["compile_s"] = compiled
        report.show(name, {option: value for option, value in options.items() if option != "folder"}, json)

    signature = inspect.signature(run, eval_str=True)
    added = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])  # type: ignore[attr-defined]
    command.__annotations__ = {**run.__annotations__, "json": AsJson, "return": None}
    return command


for name, benchmark in (HOT | KEYS | FITTED | MANY | COLD | DISK).items():
    app.command(name)(command_of(name, benchmark.run))
