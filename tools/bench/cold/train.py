"""`kvemb bench train`: training steps on a table with a tenth of its rows hot, compared with a loop on rocksdict.

A step is a lookup, a gradient (that pulls every row towards one target) and an Adagrad update. The two sides are
processes, and take the same steps in turns, two windows each: kvemb calls `prefetch` with the next batch's keys in the
first of them. A window ends when its flushes and compactions have ended. The rows are compared at the end.

With --against, the peer is another version of kvemb. That bar applies to all windows together, because only some of
them contain merges of files.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from kvemb.tools.bench.cold import train_steps
from kvemb.tools.bench.cold.versions import environment, unpack
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.measure import RunCost, scratch, take_turns
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, HotRows, Rows, Runs, Steps
from kvemb.tools.bench.processes import Asked
from kvemb.tools.bench.results import Comparison, Report, compare_costs
from kvemb.tools.failures import BadInput

MIN_RATIO, MAX_CPU_AGAINST = 4.0, 0.5


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 32,
    hot_rows: HotRows = 400_000,
    batch: Batch = 8_192,
    steps: Steps = 100,
    runs: Runs = 5,
    zipf: Exponent = 1.0,
    budget_mib: BudgetMib = 256,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Compare with another version of kvemb: a git revision, a checkout or a wheel."
        ),
    ] = None,
    folder: Folder = None,
) -> Report:
    """Train with a tenth of the rows hot. Peer: a loop written by hand on rocksdict, or another version of kvemb."""
    report, peer = Report(), against or "rocksdict by hand"
    with scratch(folder) as place, ExitStack() as stack:
        popularity = Zipf(rows, zipf, seed=3)
        np.save(place / "ids.npy", ids_of(np.arange(rows, dtype=np.int64)))
        windows = 2 * (1 + runs)
        work = [[ids_of(popularity.sample(batch)) for _ in range(steps)] for _ in range(windows)]
        np.save(place / "work.npy", np.array(work))
        settings = {"folder": str(place), "dim": dim, "hot_rows": hot_rows, "budget": budget_mib << 20}
        where = None
        if against is not None:
            unpack(against, place / "version")
            where = environment(place / "version")
        sides = [
            stack.enter_context(_begun(name, {**settings, "store": str(place / store), "kind": kind}, environ))
            for name, store, kind, environ in (
                ("kvemb", "ours", "kvemb", None),
                (peer, "theirs", "by hand" if against is None else "kvemb", where),
            )
        ]
        paths = [side.ask("load") for side in sides]
        if against is not None:
            report.facts["paths"] = paths
            if paths[0] == paths[1]:
                raise BadInput(f"the processes of both versions import {paths}; set no PYTHONPATH")
        turns = [partial(_two_windows, side) for side in sides]
        for turn in turns:
            turn(runs)  # warm up: hot tier, block cache, page cache
        before = sides[0].ask("stats")
        ours, theirs = take_turns(turns, runs)
        hits, misses, writes = np.subtract(sides[0].ask("stats"), before).tolist()
        report.facts |= {"hit_rate": hits / max(1, hits + misses), "cold_writes_per_step": writes / (2 * runs * steps)}
        mine, other = (np.load(side.ask("values")) for side in sides)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(mine)
    lines = _lines(ours, theirs, peer, steps * batch)
    if against is None:
        lines[2], lines[3] = lines[2].ratio_at_least(MIN_RATIO), lines[3].ratio_at_most(1 / MIN_RATIO)
    else:
        lines[1] = lines[1].ratio_at_most(MAX_CPU_AGAINST)
    report.lines = lines
    return report


def _begun(name: str, settings: dict[str, Any], environ: dict[str, str] | None) -> Asked:
    """Return the process of a side; it is started by its path, as another version's file may differ."""
    return Asked(name, [str(train_steps.__file__), json.dumps(settings)], environ)


def _two_windows(side: Asked, run: int) -> tuple[RunCost, RunCost]:
    """Return the cost of a window of steps with prefetch, and of one without."""
    first, second = (RunCost(**side.ask(f"run {2 * run + which}")) for which in range(2))
    return first, second


Pairs = list[tuple[RunCost, RunCost]]


def _lines(ours: Pairs, theirs: Pairs, peer: str, count: int) -> list[Comparison]:
    """Return the lines of all steps, of those with prefetch and of those without. count: rows of a window."""
    totals = [[sum((each for pair in side for each in pair), RunCost(0.0, 0.0))] for side in (ours, theirs)]
    lines = compare_costs("all steps, mean", 2 * len(ours) * count, totals[0], peer, totals[1])
    for which, how in enumerate(("with prefetch", "no prefetch")):
        mine, other = ([pair[which] for pair in side] for side in (ours, theirs))
        lines += compare_costs(f"step, {how}", count, mine, peer, other)
    return lines
