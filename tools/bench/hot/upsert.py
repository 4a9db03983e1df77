"""`kvemb bench upsert`: upserts of random rows of a hot table, compared with `array[index] = rows`, by dim.

On both sides the last of duplicate keys wins.
"""

from __future__ import annotations

import numpy as np

from kvemb.tools.bench.data import Floats
from kvemb.tools.bench.hot.resident import Call, Resident, min_ratio, resident
from kvemb.tools.bench.options import DIMS, Batch, Batches, Dims, Folder, Rows, Runs
from kvemb.tools.bench.results import Comparison, Report, compare_costs


def run(
    rows: Rows = 4_000_000,
    dim: Dims = DIMS,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Upsert random rows, all hot. Peer: an assignment to an array."""
    report = Report()
    for each in dim:
        with resident(rows, each, folder) as pair:
            report.lines += _lines(pair, each, batch, batches, runs)
    return report


def _lines(pair: Resident, dim: int, batch: int, batches: int, runs: int) -> list[Comparison]:
    chance = np.random.default_rng(2)
    values: list[Floats] = [chance.standard_normal((batch, dim), dtype=np.float32) for _ in range(batches)]

    def upsert(pair: Resident, call: Call) -> None:
        pair.var.upsert(call.keys, values[call.number])

    def assign(pair: Resident, call: Call) -> None:
        pair.array[call.positions] = values[call.number]

    calls = pair.calls(runs, batches, batch)
    ours, peer = pair.measure((upsert, assign), calls)
    pair.assert_same(calls)
    rate, cpu = compare_costs(f"upsert, dim {dim}", batches * batch, ours, "array[index] = rows", peer)
    return [rate.ratio_at_least(min_ratio(dim)), cpu]
