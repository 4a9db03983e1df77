"""`kvemb bench hitrate`: the share of lookups that find their row hot, compared with an exact LRU and a fixed set.

Every access counts, including the first ones after loading, when all rows have the same score.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np

import kvemb
from kvemb.tools.bench.data import Ids, Zipf, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Comparison, Report, Spread

MIN_RATE = 0.50
LOAD_BATCH = 65_536


def run(
    rows: int, dim: int, hot_rows: int, batch: int, accesses: int, exponent: float, budget_mib: int, folder: Path | None
) -> Report:
    """Look up `accesses` keys in batches; the hit rate is per occurrence, from the variable's hit counter."""
    settings: dict[str, object] = {"rows": rows, "dim": dim, "hot_rows": hot_rows, "batch": batch, "accesses": accesses}
    report = Report("hitrate", {**settings, "zipf": exponent, "budget_mib": budget_mib})
    report.facts["compile_s"] = compile_seconds(dim)
    zipf = Zipf(rows, exponent, seed=4)
    sizes = [batch] * (accesses // batch) + ([accesses % batch] if accesses % batch else [])
    work = [zipf.sample(size) for size in sizes]
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
                now = var.stats
                rising.append((now.hits - last.hits) / max(1, now.hits + now.misses - last.hits - last.misses))
                last = now
        hits, misses = last.hits - first.hits, last.misses - first.misses
        report.facts["promotions"] = last.promotions - first.promotions
    if hits + misses != accesses:
        raise AssertionError(f"{accesses} keys were looked up, but hits and misses are {hits + misses}")
    report.facts["hit_rate_by_eighth"] = [round(rate, 3) for rate in rising]
    rate, lru, best = hits / accesses, lru_hit_rate(work, hot_rows), zipf.mass_of_top(hot_rows)
    report.lines = [
        _line(rate, "exact LRU, simulated", lru, f"rate ≥ {MIN_RATE:g}", rate >= MIN_RATE),
        _line(rate, "static optimum", best, "", None),
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


def _line(rate: float, peer_name: str, peer: float, bar: str, met: bool | None) -> Comparison:
    return Comparison(
        "hit rate", "share", Spread.of([rate]), peer_name, Spread.of([peer]), Spread.of([rate / peer]), bar, met
    )
