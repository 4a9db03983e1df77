"""`kvemb bench small`: the cost of a call with few keys, compared with np.take, and of a key that is not hot.

Every call is timed separately, so that a busy machine hardly changes the median. The cold store's own time to read the
key is counted by the variable (Stats.seconds_cold_read) and subtracted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import Ids, ids_of
from kvemb.tools.bench.measure import scratch, until_idle
from kvemb.tools.bench.options import Dim, Folder, Rows, Runs
from kvemb.tools.bench.results import Report, Spread, compare
from kvemb.tools.bench.trained import load
from kvemb.tools.limits import MAX_RUNS

KEYS = 100
HOT_USES = 1000
BARS = {"lookup": 15.0, "apply_gradients": 30.0, "upsert": 20.0, "absent": 60.0, "cold": 60.0}


class Cost(NamedTuple):
    """Microseconds per call: the median wall time without the cold store's, the mean CPU time of the thread, and the
    median wall time of the cold store.
    """

    wall: float
    cpu: float
    cold: float = 0.0


def run(
    rows: Rows = 200_000,
    dim: Dim = 64,
    calls: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Calls of each kind per run.")] = 500,
    runs: Runs = 7,
    folder: Folder = None,
) -> Report:
    """Time small calls: one key or a hundred, hot; one key missing or cold. Peer: np.take."""
    report = Report()
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget="256MiB") as store:
        optimizer = kvemb.optimizers.Adagrad(0.01)
        var = store.get_variable("small", dim=dim, hot_rows=max(16 * KEYS, rows // 10), optimizer=optimizer)
        load(var, rows)
        store.flush()
        costs = _measure(var, rows, dim, calls, runs)
    for name, keys in (("lookup", 1), ("apply_gradients", 1), ("upsert", 1), ("lookup", KEYS)):
        what, taken = f"{name}, {keys} {'key' if keys == 1 else 'keys'}", f"np.take, {keys}"
        ours, peer = costs[f"{name} {keys}"], costs[f"take {keys}"]
        line = compare(what, "us", [cost.wall for cost in ours], taken, [cost.wall for cost in peer])
        cpu = compare(what, "us CPU", [cost.cpu for cost in ours], taken, [cost.cpu for cost in peer])
        report.lines += [line.at_most(BARS[name] if keys == 1 else None), cpu]
    hot = [cost.wall for cost in costs[f"lookup {KEYS}"]]
    for name in ("absent", "cold"):
        more = [cost.wall - before for cost, before in zip(costs[name], hot, strict=True)]
        report.lines.append(compare(f"one of them {name}: more", "us", more, "all hot", hot).at_most(BARS[name]))
    report.facts["cold_read_us"] = {name: Spread.of(c.cold for c in costs[name]).median for name in ("absent", "cold")}
    report.facts["cpu_us"] = {name: Spread.of(c.cpu for c in costs[name]).median for name in ("absent", "cold")}
    return report


def _measure(var: kvemb.Variable, rows: int, dim: int, calls: int, runs: int) -> dict[str, list[Cost]]:
    one, hot, array = ids_of(np.arange(1)), ids_of(np.arange(KEYS)), np.ones((rows, dim), np.float32)
    row, at_one, at_hot = np.ones((1, dim), np.float32), np.arange(1), np.arange(KEYS)
    for _ in range(HOT_USES):
        var.lookup(hot)  # often enough that they stay hot
    known = iter(range(KEYS, rows))
    unknown = iter(range(rows, rows + 2 * runs * calls + 100))
    sides: dict[str, Callable[[], Cost]] = {
        "take 1": lambda: _calls(lambda: np.take(array, at_one, axis=0), calls),
        "lookup 1": lambda: _calls(lambda: var.lookup(one), calls),
        "apply_gradients 1": lambda: _calls(lambda: var.apply_gradients(one, row), calls),
        "upsert 1": lambda: _calls(lambda: var.upsert(one, row), calls),
        f"take {KEYS}": lambda: _calls(lambda: np.take(array, at_hot, axis=0), calls),
        f"lookup {KEYS}": lambda: _calls(lambda: var.lookup(hot), calls),
        "absent": lambda: _missing(var, hot, lambda: ids_of(np.array([next(unknown)])), calls, absent=1),
        "cold": lambda: _missing(var, hot, lambda: ids_of(np.array([next(known)])), calls, absent=0),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    until_idle()
    for number in range(runs + 1):
        for name, side in sides.items():
            cost = side()
            if number:  # the first run warms up
                costs[name].append(cost)
    return costs


def _calls(call: Callable[[], object], count: int) -> Cost:
    wall, cpu = np.empty(count), np.empty(count)
    for i in range(count):
        start, used = time.perf_counter(), time.thread_time()
        call()
        cpu[i] = time.thread_time() - used
        wall[i] = time.perf_counter() - start
    return Cost(1e6 * float(np.median(wall)), 1e6 * float(np.mean(cpu)))


def _missing(var: kvemb.Variable, hot: Ids, draw: Callable[[], Ids], count: int, *, absent: int) -> Cost:
    """Time lookups of hot keys with a drawn key in place of the first; count those in which it is not hot."""
    wall: list[float] = []
    cpu: list[float] = []
    cold: list[float] = []
    keys = hot.copy()
    before = var.stats
    while len(wall) < count:
        keys[:1] = draw()
        start, used = time.perf_counter(), time.thread_time()
        var.lookup(keys)
        used, seconds = time.thread_time() - used, time.perf_counter() - start
        after = var.stats
        if (after.misses - before.misses, after.absent - before.absent) == (1 - absent, absent):
            cold.append(after.seconds_cold_read - before.seconds_cold_read)
            wall.append(seconds - cold[-1])
            cpu.append(used)
        before = after
    return Cost(1e6 * float(np.median(wall)), 1e6 * float(np.mean(cpu)), 1e6 * float(np.median(cold)))
