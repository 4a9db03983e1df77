"""`kvemb bench cluster`: a step over shards, compared with a step of one store, and with the exchange of its messages
alone; and how evenly shards are filled.

A step is a lookup and a training step of distinct and repeated keys, drawn by Zipf's law, all hot. On Ray, a second
client reaches the same shards through Arrow Flight, as if it were on another node; its messages go over the loopback.
In a pause between two steps a model would compute: shards go on with the step meanwhile.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

import kvemb
import kvemb.cluster
from kvemb.tools.bench.data import Ids, Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import scratch, seconds, take_turns
from kvemb.tools.bench.options import Batch, Dim, Exponent, Folder, Rows, Runs, Steps
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH, open_table
from kvemb.tools.limits import no_nan
from kvemb.tools.local_ray import start_ray

BALANCED, BUDGET = 8, "1GiB"
MAX_RATIO, MAX_RATIO_THROUGH_FLIGHT, MAX_IMBALANCE = 3.0, 5.0, 1.1
ONE, SHARDS, MEMORY, FLIGHT = "one store", "shards", "shared memory", "Arrow Flight"


def run(
    rows: Rows = 200_000,
    dim: Dim = 64,
    batch: Batch = 16_384,
    steps: Steps = 20,
    runs: Runs = 5,
    zipf: Exponent = 1.0,
    tables: Annotated[int, typer.Option(min=1, max=1000, help="Variables, with equal parts of rows and keys.")] = 1,
    shards: Annotated[int, typer.Option(min=1, max=64, help="Number of shards.")] = 2,
    transport: Annotated[
        Literal["ray", "local"], typer.Option(help="ray: actors; local: shards in this process.")
    ] = "ray",
    pause: Annotated[
        float,
        typer.Option(min=0.0, max=1000.0, callback=no_nan, help="Milliseconds between two steps, which do not count."),
    ] = 0.0,
    folder: Folder = None,
) -> Report:
    """Train over shards, and fill 8 shards. Peers: one store; the exchange of the messages alone."""
    report = Report()
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
        opened: dict[str, Any] = {ONE: store, SHARDS: cluster}
        if transport == "ray":
            from kvemb.tools.bench.cluster.exchange import Exchange, through_flight

            opened[FLIGHT] = ends.enter_context(kvemb.cluster.connect(place / "series"))
            through_flight(opened[FLIGHT])
        made = {
            name: [open_table(each, dim, name=f"table-{number}") for number in range(tables)]
            for name, each in opened.items()
        }
        for ids in batches_of_ids(rows, LOAD_BATCH):
            for table, keys in zip(made[ONE] + made[SHARDS], 2 * _divided(ids, tables), strict=True):
                table.upsert(keys, values_of(keys, dim))
        parts = [_divided(ids, tables) for ids in batches]
        grads = np.full((batch, dim), 0.01, np.float32)
        sides: dict[str, Any] = {
            name: partial(_steps, opened[name], made[name], parts, grads, pause / 1e3) for name in opened
        }
        if transport == "ray":
            exchange = Exchange(shards, batches, dim)
            ends.callback(exchange.close)
            sides[f"the exchange by {MEMORY}"] = partial(exchange.steps, False)
            sides[f"the exchange by {FLIGHT}"] = partial(exchange.steps, True)

        def step_ms(name: str, _: int) -> float:
            return 1e3 * seconds(sides[name]) / steps - (pause if name in opened else 0.0)

        turns = [partial(step_ms, name) for name in sides]
        take_turns(turns, 1)  # warm up
        taken = dict(zip(sides, take_turns(turns, runs), strict=True))
        store.flush()
        name = f"step of {batch:,} keys over {shards} shards"
        line = compare(name, "ms", taken[SHARDS], ONE, taken[ONE])
        report.lines.append(line.ratio_at_most(MAX_RATIO if transport == "ray" else None))
        if transport == "ray":
            line = compare(f"{name}, {FLIGHT}", "ms", taken[FLIGHT], ONE, taken[ONE])
            report.lines.append(line.ratio_at_most(MAX_RATIO_THROUGH_FLIGHT))
            for way, side in ((MEMORY, SHARDS), (FLIGHT, FLIGHT)):
                alone = f"the exchange by {way}"
                report.lines.append(compare(f"{name}, {way}", "ms", taken[side], alone, taken[alone]))
        filled = _filled(distinct, place)
        what, mean = f"distinct keys on the heaviest of {BALANCED} shards", sum(filled) / len(filled)
        line = compare(what, "rows", [max(filled)], "the mean", [mean])
        report.lines.append(line.ratio_at_most(MAX_IMBALANCE))
    return report


def _divided(ids: Ids, tables: int) -> list[Ids]:
    return [ids[ids % tables == number] for number in range(tables)]


def _steps(store: Any, tables: list[kvemb.Variable], batches: list[list[Ids]], grads: Any, pause: float) -> None:
    for parts in batches:
        if len(tables) == 1:
            tables[0].lookup(parts[0])
            tables[0].apply_gradients(parts[0], grads)
        else:
            store.lookup(dict(zip(tables, parts, strict=True)))
            given = [(keys, grads[: len(keys)]) for keys in parts]
            store.apply_gradients(dict(zip(tables, given, strict=True)))
        if pause:
            time.sleep(pause)


def _filled(keys: Ids, place: Path) -> list[int]:
    """Return how many of the distinct keys each of several shards has."""
    how: dict[str, Any] = {"memory_budget": "16MiB", "scratch": place / "balance", "transport": "local"}
    with kvemb.cluster.open(shards=BALANCED, **how) as cluster:
        cluster.get_variable("table", dim=1).upsert(keys, np.zeros((len(keys), 1), np.float32))
        return [stats.rows for stats in cluster.stats_by_shard]
