"""`kvemb bench lookup`: lookups of random rows of a hot table, compared with np.take on an array, by dim."""

from __future__ import annotations

import numpy as np

from kvemb.tools.bench.hot.resident import Side, min_ratio, resident
from kvemb.tools.bench.options import DIMS, Batch, Batches, Dims, Folder, Rows, Runs
from kvemb.tools.bench.results import Report, compare_costs

PEER = "np.take, one thread"
SIDES: tuple[Side, ...] = (
    lambda pair, call: pair.var.lookup(call.keys),
    lambda pair, call: pair.var.lookup(call.keys, touch=False),
    lambda pair, call: np.take(pair.array, call.positions, axis=0),
)


def run(
    rows: Rows = 4_000_000,
    dim: Dims = DIMS,
    batch: Batch = 65_536,
    batches: Batches = 10,
    runs: Runs = 9,
    folder: Folder = None,
) -> Report:
    """Look up random rows, all hot. Peer: np.take."""
    report, count = Report(), batches * batch
    for each in dim:
        with resident(rows, each, folder) as pair:
            calls = pair.calls(runs, batches, batch)
            touched, untouched, peer = pair.measure(SIDES, calls)
            pair.assert_same(calls)
        rate, cpu = compare_costs(f"lookup, dim {each}", count, touched, PEER, peer)
        without, _ = compare_costs(f"lookup, touch=False, dim {each}", count, untouched, PEER, peer)
        report.lines += [rate.ratio_at_least(min_ratio(each)), without, cpu]
    return report
