"""`kvemb bench hitrate`: the share of lookups that find their row hot, compared with an exact LRU and a fixed set.

Every access counts, including the first ones after loading, when all rows have the same score.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import numpy as np
import typer

import kvemb
from kvemb.tools.bench.data import Ids, Zipf, ids_of, values_of
from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.options import Batch, BudgetMib, Dim, Exponent, Folder, HotRows, Rows
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import LOAD_BATCH
from kvemb.tools.limits import MAX_KEYS_DRAWN

MIN_RATE = 0.50


def run(
    rows: Rows = 2_000_000,
    dim: Dim = 4,
    hot_rows: HotRows = 131_072,
    batch: Batch = 8_192,
    accesses: Annotated[int, typer.Option(min=1, max=MAX_KEYS_DRAWN, help="Keys looked up in total.")] = 6_000_000,
    zipf: Exponent = 0.8,
    budget_mib: BudgetMib = 256,
    folder: Folder = None,
) -> Report:
    """Measure the hit rate of lookups. Peers: an exact LRU cache; the best fixed set of rows."""
    report = Report()
    popularity = Zipf(rows, zipf, seed=4)
    work = [popularity.sample(min(batch, accesses - at)) for at in range(0, accesses, batch)]
    # The hit rate of each eighth shows how it rises; the bar is for the whole.
    marks = {len(work) * i // 8 for i in range(1, 9)}
    rising: list[float] = []
    with scratch(folder) as path, kvemb.open(path / "store", memory_budget=budget_mib << 20) as store:
        var = store.get_variable("hot", dim=dim, restrict_policy=kvemb.FrequencyRestrictPolicy(), hot_rows=hot_rows)
        # Load in a random order: loaded by rank, the popular rows would all be cold or all be hot at the start.
        for ranks in np.array_split(np.random.default_rng(5).permutation(rows), max(1, rows // LOAD_BATCH)):
            var.upsert(ids_of(ranks), values_of(ids_of(ranks), dim))
        first = last = var.stats
        for i, ranks in enumerate(work, start=1):
            var.lookup(ids_of(ranks))
            if i in marks:
                rising.append((var.stats - last).hit_rate)
                last = var.stats
    done = last - first
    if done.hits + done.misses != accesses:
        raise AssertionError(f"{accesses} keys were looked up, but hits and misses are {done.hits + done.misses}")
    report.facts |= {"promotions": done.promotions, "hit_rate_by_eighth": [round(rate, 3) for rate in rising]}
    rate, lru = done.hit_rate, lru_hit_rate(work, hot_rows)
    report.lines = [
        compare("hit rate", "share", [rate], "exact LRU, simulated", [lru]).at_least(MIN_RATE),
        compare("hit rate", "share", [rate], "static optimum", [popularity.mass_of_top(hot_rows)]),
    ]
    return report


def lru_hit_rate(work: list[Ids], cells: int) -> float:
    """Return the hit rate of an exact LRU cache of this many cells, initially empty, by simulating every access."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for ranks in work:
        for rank in ranks.tolist():
            if rank in held:
                hits += 1
                held.move_to_end(rank)
            else:
                held[rank] = None
                if len(held) > cells:
                    held.popitem(last=False)
        total += len(ranks)
    return hits / total
