"""`kvemb bench cluster`: a step over shards, compared with a step of one store, and with the exchange of its messages
alone; and how evenly shards are filled.

A step is a lookup and a training step of distinct and repeated keys, drawn by Zipf's law, all hot. On Ray, a second
client reaches the same shards through Arrow Flight, as if it were on another node; its messages go over the loopback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb.tools.bench.cluster.exchange import Exchange, through_flight
from kvemb.tools.bench.data import Ids, Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.local_ray import start_ray

LOAD_BATCH, BALANCED, BUDGET = 65_536, 8, "1GiB"
MAX_RATIO, MAX_RATIO_THROUGH_FLIGHT, MAX_IMBALANCE = 3.0, 5.0, 1.1
MEMORY, FLIGHT = "shared memory", "Arrow Flight"


def run(
    rows: int,
    dim: int,
    batch: int,
    steps: int,
    runs: int,
    zipf: float,
    tables: int,
    shards: int,
    transport: Any,
    folder: Path | None,
) -> Report:
    """Time `runs` runs of `steps` steps each, in turns. transport: of kvemb.cluster.open.

    tables: the rows and keys are divided among so many variables, and a step is one call of each kind for all.
    """
    settings = {"rows": rows, "dim": dim, "batch": batch, "tables": tables, "shards": shards, "transport": transport}
    report = Report("cluster", {**settings, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dim)
    if transport == "ray":
        start_ray()
    drawn = Zipf(rows, zipf, 0)
    batches = [ids_of(drawn.sample(batch)) for _ in range(steps)]
    distinct = np.unique(np.concatenate(batches))
    with ExitStack() as ends:
        place = ends.enter_context(scratch(folder))
        store = ends.enter_context(kvemb.open(place / "store", memory_budget=BUDGET))
        how: dict[str, Any] = {"memory_budget": BUDGET, "scratch": place / "scratch", "transport": transport}
        cluster = ends.enter_context(kvemb.cluster.open(place / "series", shards=shards, **how))
        opened: dict[str, Any] = {"one store": store, "shards": cluster}
        if transport == "ray":
            opened[FLIGHT] = ends.enter_context(kvemb.cluster.connect(place / "series"))
            through_flight(opened[FLIGHT])
        made = {name: _variables(each, tables, dim) for name, each in opened.items()}
        for ids in batches_of_ids(rows, LOAD_BATCH):
            for name in ("one store", "shards"):
                for table, keys in zip(made[name], _divided(ids, tables), strict=True):
                    table.upsert(keys, values_of(keys, dim))
        parts = [_divided(ids, tables) for ids in batches]
        grads = np.full((batch, dim), 0.01, np.float32)
        sides = {name: partial(_steps, opened[name], made[name], parts, grads) for name in opened}
        if transport == "ray":
            exchange = Exchange(shards, batches, dim)
            ends.callback(exchange.close)
            sides[f"exchange by {MEMORY}"] = partial(exchange.steps, flight=False)
            sides[f"exchange by {FLIGHT}"] = partial(exchange.steps, flight=True)
        taken = _in_turns(sides, runs, steps)
        store.flush()
        name = f"step of {batch:,} keys over {shards} shards"
        one = "one store", taken["one store"]
        report.lines.append(compare_cost(name, "ms", taken["shards"], *one, MAX_RATIO if transport == "ray" else None))
        if transport == "ray":
            ways = (MEMORY, "shards"), (FLIGHT, FLIGHT)
            report.lines.append(compare_cost(f"{name}, {FLIGHT}", "ms", taken[FLIGHT], *one, MAX_RATIO_THROUGH_FLIGHT))
            for way, side in ways:
                alone = f"exchange by {way}"
                report.lines.append(compare_cost(f"{name}, {way}", "ms", taken[side], f"the {alone}", taken[alone]))
        filled = _filled(distinct, place)
        heaviest, mean = [float(max(filled))], [sum(filled) / len(filled)]
        what = f"distinct keys on the heaviest of {BALANCED} shards"
        report.lines.append(compare_cost(what, "rows", heaviest, "the mean", mean, MAX_IMBALANCE))
    return report


def _variables(store: Any, tables: int, dim: int) -> list[kvemb.Variable]:
    optimizer = kvemb.optimizers.Adagrad(0.01)
    return [store.get_variable(f"table-{number}", dim=dim, optimizer=optimizer) for number in range(tables)]


def _divided(ids: Ids, tables: int) -> list[Ids]:
    return [ids[ids % tables == number] for number in range(tables)]


def _steps(store: Any, tables: list[kvemb.Variable], batches: list[list[Ids]], grads: Any) -> None:
    for parts in batches:
        if len(tables) == 1:
            tables[0].lookup(parts[0])
            tables[0].apply_gradients(parts[0], grads)
        else:
            store.lookup(dict(zip(tables, parts, strict=True)))
            given = [(keys, grads[: len(keys)]) for keys in parts]
            store.apply_gradients(dict(zip(tables, given, strict=True)))


def _in_turns(sides: Mapping[str, Callable[[], None]], runs: int, steps: int) -> dict[str, list[float]]:
    """Return milliseconds a step of each side's runs."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name, side in sides.items():
            begun = time.perf_counter()
            side()
            if number:  # the first run warms up
                taken[name].append(1e3 * (time.perf_counter() - begun) / steps)
    return taken


def _filled(keys: Ids, place: Path) -> list[int]:
    """Return how many of the distinct keys each of several shards has."""
    how: dict[str, Any] = {"memory_budget": "16MiB", "scratch": place / "balance", "transport": "local"}
    with kvemb.cluster.open(shards=BALANCED, **how) as cluster:
        cluster.get_variable("table", dim=1).upsert(keys, np.zeros((len(keys), 1), np.float32))
        return [stats.rows for stats in cluster.stats_by_shard]
