"""`kvemb bench lookup`: lookups of random rows of a table that is all hot, beside np.take on an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvemb.tools.bench.data import ids_of
from kvemb.tools.bench.measure import compile_seconds, take_turns
from kvemb.tools.bench.resident import assert_same, resident
from kvemb.tools.bench.results import Report, compare

LEAST_RATIO = 0.6


def run(rows: int, dim: int, batch: int, batches: int, runs: int, folder: Path | None) -> Report:
    """Time `runs` runs of `batches` lookups each, with and without recording uses."""
    report = Report("lookup", {"rows": rows, "dim": dim, "batch": batch, "batches": batches, "runs": runs})
    report.facts["compile_s"] = compile_seconds(dim)
    with resident(rows, dim, folder) as pair:
        work = [pair.positions(i, batches, batch) for i in range(runs)]
        keys = [[ids_of(positions) for positions in run] for run in work]

        def touching(i: int) -> None:
            for batch_keys in keys[i]:
                pair.var.lookup(batch_keys)

        def untouching(i: int) -> None:
            for batch_keys in keys[i]:
                pair.var.lookup(batch_keys, touch=False)

        def array(i: int) -> None:
            for positions in work[i]:
                np.take(pair.array, positions, axis=0)

        take_turns((touching, untouching, array), 1, batch)  # warm up
        hits, misses = pair.var.stats.hits, pair.var.stats.misses
        touched, untouched, peer = take_turns((touching, untouching, array), runs, batches * batch)
        report.facts["misses"] = pair.var.stats.misses - misses
        if pair.var.stats.misses != misses or pair.var.stats.hits == hits:
            raise AssertionError("some rows were not hot, so the measurement is not valid")
        assert_same(pair, work[0][0])
    report.lines = [
        compare("lookup", "rows/s", touched, "np.take, one thread", peer, LEAST_RATIO),
        compare("lookup, touch=False", "rows/s", untouched, "np.take, one thread", peer),
    ]
    return report
