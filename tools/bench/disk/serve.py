"""`kvemb bench serve`: latencies of requests to a checkpoint that is opened read-only, as a server opens it.

Each thread sends one request after the other, of keys by Zipf, so the rate is what the threads reach, not a given one.
Most rows are cold, on this machine's disk or in its page cache. The peer is np.take on an array of all rows: what the
calls would take if nothing had to be found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import Floats, Ids, Zipf, ids_of
from kvemb.tools.bench.hot.resident import array_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import BudgetMib, Dim, Exponent, Folder, Rows, Runs
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load
from kvemb.tools.limits import MAX_BATCH, MAX_RUNS

PERCENTILES = (50, 99, 99.9)
MAX_P99_MS = 20.0


def run(
    rows: Rows = 1_000_000,
    dim: Dim = 32,
    keys: Annotated[int, typer.Option(min=1, max=MAX_BATCH, help="Keys of a request.")] = 256,
    threads: Annotated[int, typer.Option(min=1, max=64, help="Threads that send requests.")] = 2,
    requests: Annotated[int, typer.Option(min=1, max=MAX_RUNS, help="Requests of each thread and run.")] = 1_000,
    zipf: Exponent = 1.0,
    runs: Runs = 3,
    budget_mib: BudgetMib = 64,
    folder: Folder = None,
) -> Report:
    """Measure latencies of lookups in a checkpoint, by percentile. Peer: np.take on an array of all rows."""
    report, array = Report(), array_of(rows, dim)
    work = [Zipf(rows, zipf, seed=each).sample(keys * requests) for each in range(threads)]
    with scratch(folder) as path:
        with kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
            load(store.get_variable("served", dim=dim), rows)
            saved = store.checkpoint(path / "saved")
        with kvemb.open(saved, read_only=True, memory_budget=budget_mib << 20) as reader:
            table = reader.variables["served"]
            np.testing.assert_array_equal(table.lookup(ids_of(work[0][:keys])), array[work[0][:keys]])
            given = [[ids_of(part) for part in np.split(each, requests)] for each in work]
            places = [np.split(each, requests) for each in work]

            def look_up(ids: Ids) -> Floats:
                found: Floats = table.lookup(ids)
                return found

            before = table.stats
            ours = [_latencies(look_up, given) for _ in range(runs)]
            hit_rate = (table.stats - before).hit_rate
            theirs = [_latencies(lambda ids: array.take(ids, axis=0), places) for _ in range(runs)]
    for percent in PERCENTILES:
        mine, other = ([float(np.percentile(each, percent)) * 1000 for each, _ in side] for side in (ours, theirs))
        line = compare(f"p{percent:g} of a request", "ms", mine, "np.take", other)
        report.lines.append(line.at_most(MAX_P99_MS) if percent == 99 else line)
    rates = [[threads * requests / wall for _, wall in side] for side in (ours, theirs)]
    report.lines.append(compare("requests", "1/s", rates[0], "np.take", rates[1]))
    report.facts["hit_rate"] = hit_rate
    return report


def _latencies(call: Callable[[Any], object], work: list[list[Ids]]) -> tuple[Floats, float]:
    """Call with each thread's requests, one thread beside the other; return each latency, and the whole time, in s."""

    def send(own: list[Ids]) -> list[float]:
        taken = []
        for each in own:
            began = time.perf_counter()
            call(each)
            taken.append(time.perf_counter() - began)
        return taken

    began = time.perf_counter()
    with ThreadPoolExecutor(len(work)) as pool:
        found = [taken for own in pool.map(send, work) for taken in own]
    return np.array(found, np.float32), time.perf_counter() - began
