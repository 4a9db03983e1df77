"""`kvemb bench lookup`: lookups of random rows of a hot table, compared with np.take on an array, by dim."""

from __future__ import annotations

import numpy as np

from kvemb.tools.bench.hot.resident import Resident, Side, by_dim, min_ratio
from kvemb.tools.bench.options import DIMS, Batch, Batches, Dims, Folder, Rows, Runs
from kvemb.tools.bench.results import Comparison, Report, compare_costs

PEER = "np.take, one thread"


def run(
    rows: Rows = 4_000_000,
    dim: Dims = DIMS,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Look up random rows, all hot. Peer: np.take."""

    def lines(pair: Resident) -> list[Comparison]:
        calls, count = pair.calls(runs, batches, batch), batches * batch
        sides: list[Side] = [
            lambda call: pair.var.lookup(call.keys),
            lambda call: pair.var.lookup(call.keys, touch=False),
            lambda call: np.take(pair.array, call.positions, axis=0),
        ]
        touched, untouched, peer = pair.measure(sides, calls)
        pair.assert_same(calls)
        rate, cpu = compare_costs(f"lookup, dim {pair.dim}", count, touched, PEER, peer)
        without, _ = compare_costs(f"lookup, touch=False, dim {pair.dim}", count, untouched, PEER, peer)
        return [rate.ratio_at_least(min_ratio(pair.dim)), without, cpu]

    return by_dim(rows, dim, folder, lines)
