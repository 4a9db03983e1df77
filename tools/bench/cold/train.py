"""`kvemb bench train`: training steps on a table with a tenth of its rows hot, compared with a loop on rocksdict.

A step is a lookup, a gradient (that pulls every row towards one target) and an Adagrad update. Both sides take the same
steps, in turns, two windows each: kvemb calls `prefetch` with the next batch's keys in the first of them. A window ends
when its flushes and compactions have ended. The rows are compared at the end. CPU time is the whole process's.

With --against, the peer is another version of kvemb, and each version runs in its own process. That bar applies to all
windows together, because only some of them contain merges of files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.cold import train_steps
from kvemb.tools.bench.cold.train_steps import TrainedTable, Work
from kvemb.tools.bench.cold.versions import environment, unpack
from kvemb.tools.bench.data import Zipf, ids_of
from kvemb.tools.bench.measure import RunCost, cost, scratch, take_turns, until_idle
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, HotRows, Rows, Runs, Steps
from kvemb.tools.bench.processes import Asked
from kvemb.tools.bench.results import Comparison, Report, compare_costs
from kvemb.tools.bench.trained import EPSILON, LEARNING_RATE
from kvemb.tools.failures import BadInput

MIN_RATIO, MAX_CPU_AGAINST = 4.0, 0.5


class Side(NamedTuple):
    """A table in training. run: takes a window's steps; values: the last batch's rows; stats: of a variable."""

    name: str
    run: Callable[[int], RunCost]
    values: Callable[[], Any]
    stats: Callable[[], kvemb.Stats] = kvemb.Stats

    def two_windows(self, number: int) -> tuple[RunCost, RunCost]:
        """Return the cost of the steps with prefetch, and of those without."""
        return self.run(2 * number), self.run(2 * number + 1)


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
    report = Report()
    with scratch(folder) as place, ExitStack() as stack:
        popularity = Zipf(rows, zipf, seed=3)
        np.save(place / "ids.npy", ids_of(np.arange(rows, dtype=np.int64)))
        windows = 2 * (1 + runs)
        work = [[ids_of(popularity.sample(batch)) for _ in range(steps)] for _ in range(windows)]
        np.save(place / "work.npy", np.array(work))
        settings = {"folder": str(place), "dim": dim, "hot_rows": hot_rows, "budget": budget_mib << 20}
        if against is None:
            sides = _beside_by_hand(settings, stack)
        else:
            sides, report.facts["paths"] = _beside_version(against, settings, stack)
        for side in sides:
            side.two_windows(runs)  # warm up: hot tier, block cache, page cache
        before = sides[0].stats()
        ours, theirs = take_turns([side.two_windows for side in sides], runs)
        done = sides[0].stats() - before
        if against is None:
            report.facts |= {"hit_rate": done.hit_rate, "cold_writes_per_step": done.cold_writes / (2 * runs * steps)}
        mine, other = (side.values() for side in sides)
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
        report.facts["rows_compared"] = len(mine)
    lines = _lines(ours, theirs, sides[1].name, steps * batch)
    if against is None:
        lines[2], lines[3] = lines[2].ratio_at_least(MIN_RATIO), lines[3].ratio_at_most(1 / MIN_RATIO)
    else:
        lines[1] = lines[1].ratio_at_most(MAX_CPU_AGAINST)
    report.lines = lines
    return report


def _beside_by_hand(settings: dict[str, Any], stack: ExitStack) -> list[Side]:
    from kvemb.tools.bench.train_by_hand import RocksLoop

    folder, dim = settings["folder"], settings["dim"]
    work = Work(folder, dim)
    table = stack.enter_context(closing(TrainedTable(store=f"{folder}/ours", **settings)))
    peer = RocksLoop(Path(folder, "peer"), dim, LEARNING_RATE, EPSILON, settings["budget"])
    stack.callback(peer.close)
    table.load()
    for ids, rows in work.rows():
        peer.load(ids, rows)
    peer.flush()
    until_idle()

    def train_by_hand(window: int) -> None:
        for ids in work.windows[window]:
            peer.train(np.array(ids), work.pull)
        until_idle()

    return [
        Side("kvemb", partial(cost, table.run), table.values, lambda: table.table.stats),
        Side("rocksdict by hand", partial(cost, train_by_hand), lambda: peer.values(work.seen())),
    ]


def _beside_version(version: str, settings: dict[str, Any], stack: ExitStack) -> tuple[list[Side], list[str]]:
    """Return this version and another one, and where they are imported from. Raises BadInput if they are the same."""
    place = Path(settings["folder"])
    unpack(version, place / "version")
    sides: list[Side] = []
    paths: list[str] = []
    for name, where in (("this one", None), (version, environment(place / "version"))):
        given = json.dumps({**settings, "store": str(place / f"store-{len(sides)}")})
        process = stack.enter_context(Asked(name, [str(train_steps.__file__), given], where))
        paths.append(process.ask("load"))
        sides.append(Side(name, partial(_run_there, process), partial(_values_there, process)))
    if len(set(paths)) == 1:
        raise BadInput(f"the processes of both versions import {paths}; set no PYTHONPATH")
    return sides, paths


def _run_there(process: Asked, window: int) -> RunCost:
    return RunCost(**process.ask(f"run {window}"))


def _values_there(process: Asked) -> Any:
    return np.load(process.ask("values"))


Pairs = list[tuple[RunCost, RunCost]]


def _lines(ours: Pairs, theirs: Pairs, peer: str, count: int) -> list[Comparison]:
    """Return the lines of all steps, of those with prefetch and of those without. count: rows of a window."""
    totals = [[sum((each for pair in side for each in pair), RunCost(0.0, 0.0))] for side in (ours, theirs)]
    lines = compare_costs("all steps, mean", 2 * len(ours) * count, totals[0], peer, totals[1])
    for which, how in enumerate(("with prefetch", "no prefetch")):
        mine, other = ([pair[which] for pair in side] for side in (ours, theirs))
        lines += compare_costs(f"step, {how}", count, mine, peer, other)
    return lines
