"""`kvemb bench cluster`: a step over shards, compared with a step of one store, and with empty actor calls of the same
bytes; and how evenly shards are filled.

A step is a lookup and a training step of distinct and repeated keys, drawn by Zipf's law, all hot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvemb
import kvemb.cluster
from kvemb.tools.bench.data import Ids, Zipf, batches_of_ids, ids_of, values_of
from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Report, compare_cost
from kvemb.tools.local_ray import start_ray

LOAD_BATCH, BALANCED, BUDGET = 65_536, 8, "1GiB"
MAX_RATIO_TO_FLOOR, MAX_IMBALANCE = 1.5, 1.1


def run(
    rows: int,
    dim: int,
    batch: int,
    steps: int,
    runs: int,
    zipf: float,
    shards: int,
    transport: Any,
    folder: Path | None,
) -> Report:
    """Time `runs` runs of `steps` steps each, in turns. transport: of kvemb.cluster.open."""
    settings = {"rows": rows, "dim": dim, "batch": batch, "shards": shards, "transport": transport, "runs": runs}
    report = Report("cluster", settings)
    report.facts["compile_s"] = compile_seconds(dim)
    if transport == "ray":
        start_ray()
    drawn, optimizer = Zipf(rows, zipf, 0), kvemb.optimizers.Adagrad(0.01)
    batches = [ids_of(drawn.sample(batch)) for _ in range(steps)]
    distinct = np.unique(np.concatenate(batches))
    with scratch(folder) as place, kvemb.open(place / "store", memory_budget=BUDGET) as store:
        how: dict[str, Any] = {"memory_budget": BUDGET, "scratch": place / "scratch"}
        with kvemb.cluster.open(place / "series", shards=shards, transport=transport, **how) as cluster:
            tables = [each.get_variable("table", dim=dim, optimizer=optimizer) for each in (store, cluster)]
            for ids in batches_of_ids(rows, LOAD_BATCH):
                for table in tables:
                    table.upsert(ids, values_of(ids, dim))
            sides: dict[str, Callable[[], None]] = {
                "one store": lambda: _steps(tables[0], batches, dim),
                "shards": lambda: _steps(tables[1], batches, dim),
            }
            floor = _Floor(shards, batches, dim) if transport == "ray" else None
            if floor is not None:
                sides["empty calls"] = floor.steps
            taken = _in_turns(sides, runs, steps)
            if floor is not None:
                floor.close()
            tables[0].resource_handle[0].flush()
        name = f"step of {batch:,} keys over {shards} shards"
        report.lines.append(compare_cost(name, "ms", taken["shards"], "one store", taken["one store"]))
        if floor is not None:
            peer = "empty actor calls, the same bytes", taken["empty calls"]
            report.lines.append(compare_cost(name, "ms", taken["shards"], *peer, MAX_RATIO_TO_FLOOR))
        filled = _filled(distinct, place)
        heaviest, mean = [float(max(filled))], [sum(filled) / len(filled)]
        what = f"distinct keys on the heaviest of {BALANCED} shards"
        report.lines.append(compare_cost(what, "rows", heaviest, "the mean", mean, MAX_IMBALANCE))
    return report


def _steps(table: kvemb.Variable, batches: list[Ids], dim: int) -> None:
    grads = np.full((len(batches[0]), dim), 0.01, np.float32)
    for ids in batches:
        table.lookup(ids)
        table.apply_gradients(ids, grads)


def _in_turns(sides: dict[str, Callable[[], None]], runs: int, steps: int) -> dict[str, list[float]]:
    """Return milliseconds a step of each side's runs."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name, side in sides.items():
            begun = time.perf_counter()
            side()
            if number:  # the first run warms up
                taken[name].append(1e3 * (time.perf_counter() - begun) / steps)
    return taken


class _Empty:
    """An actor that ignores its arguments."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def lookup(self, keys: Ids) -> Any:
        """Return rows."""
        return np.zeros((len(keys), self._dim), np.float32)

    def train(self, keys: Ids, grads: Any) -> None:
        """Receive gradients."""


class _Floor:
    """The cost of a step's calls if shards do nothing: the distinct keys, evenly divided."""

    def __init__(self, shards: int, batches: list[Ids], dim: int) -> None:
        import ray

        self._ray: Any = ray
        made: Any = self._ray.remote(_Empty).options(num_cpus=0)
        self._actors = [made.remote(dim) for _ in range(shards)]
        self._parts = [np.array_split(np.unique(ids), shards) for ids in batches]
        self._grads = [[np.zeros((len(part), dim), np.float32) for part in parts] for parts in self._parts]

    def steps(self) -> None:
        """Make the calls of all steps."""
        for parts, grads in zip(self._parts, self._grads, strict=True):
            self._ray.get([actor.lookup.remote(part) for actor, part in zip(self._actors, parts, strict=True)])
            given = zip(self._actors, parts, grads, strict=True)
            self._ray.get([actor.train.remote(part, grad) for actor, part, grad in given])

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)


def _filled(keys: Ids, place: Path) -> list[int]:
    """Return how many of the distinct keys each of several shards has."""
    how: dict[str, Any] = {"memory_budget": "16MiB", "scratch": place / "balance", "transport": "local"}
    with kvemb.cluster.open(shards=BALANCED, **how) as cluster:
        cluster.get_variable("table", dim=1).upsert(keys, np.zeros((len(keys), 1), np.float32))
        return [stats.rows for stats in cluster.stats_by_shard]
