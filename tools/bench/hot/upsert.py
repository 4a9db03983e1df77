"""`kvemb bench upsert`: upserts of random rows of a hot table, compared with `array[index] = rows`, by dim.

On both sides the last of duplicate keys wins.
"""

from __future__ import annotations

import numpy as np

from kvemb.tools.bench.data import Floats
from kvemb.tools.bench.hot.resident import Call, Resident, by_dim, min_ratio
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

    def lines(pair: Resident) -> list[Comparison]:
        chance = np.random.default_rng(2)
        values: list[Floats] = [chance.standard_normal((batch, pair.dim), dtype=np.float32) for _ in range(batches)]

        def assign(call: Call) -> None:
            pair.array[call.positions] = values[call.number]

        calls = pair.calls(runs, batches, batch)
        ours, peer = pair.measure((lambda call: pair.var.upsert(call.keys, values[call.number]), assign), calls)
        pair.assert_same(calls)
        rate, cpu = compare_costs(f"upsert, dim {pair.dim}", batches * batch, ours, "array[index] = rows", peer)
        return [rate.ratio_at_least(min_ratio(pair.dim)), cpu]

    return by_dim(rows, dim, folder, lines)
