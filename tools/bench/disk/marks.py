"""`kvemb bench marks`: what it costs to keep the state of a store, and to go back to it.

In each run a share of the rows changes, a mark is made, the store goes back to the mark of the beginning, whose rows
are compared, and is opened again. The peers are the changed records, that opening, and the copies by which a training
loop keeps the best state of a table in memory.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np

import kvemb
from kvemb.tools.bench.data import Floats, ids_of, values_of
from kvemb.tools.bench.hot.resident import array_of
from kvemb.tools.bench.measure import new_bytes, scratch, seconds, until_idle
from kvemb.tools.bench.options import BudgetMib, Dim, Folder, Rows, Runs, Share
from kvemb.tools.bench.results import Report, compare
from kvemb.tools.bench.trained import load

# What a record has beside its values (FORMAT.md): its key, and its header.
KEY_AND_HEADER = 8 + 17
MAX_WRITTEN, MAX_OPENINGS = 1.2, 1.5


def run(
    rows: Rows = 4_000_000,
    dim: Dim = 64,
    share: Share = 0.01,
    runs: Runs = 5,
    budget_mib: BudgetMib = 1_024,
    folder: Folder = None,
) -> Report:
    """Measure marks and rollbacks. Peers: the changed records, an opening, and copies of all rows in memory."""
    chance, changed, first = np.random.default_rng(7), max(1, int(rows * share)), ids_of(np.zeros(1, np.int64))
    marks: list[float] = []
    whole, written, rollbacks, openings = [], [], [], []
    with scratch(folder) as place:

        def opened() -> tuple[kvemb.Store, kvemb.Variable]:
            store = kvemb.open(place / "store", memory_budget=budget_mib << 20)
            return store, store.get_variable("kept", dim=dim)

        store, table = opened()
        load(table, rows)
        store.flush()
        until_idle()  # waits for the merges that loading caused
        best = store.mark("best", block=True)
        for _ in range(runs):
            ids = ids_of(chance.choice(rows, changed, replace=False))
            table.upsert(ids, -values_of(ids, dim))
            marks.append(seconds(store.mark))
            whole.append(marks[-1] + seconds(store.flush))  # which only waits for the mark
            written.append(new_bytes(store.marks[-1].path, best.path))
            began = time.perf_counter()
            store.rollback(best)
            table.lookup(first, touch=False)  # the first read of a file maps it
            rollbacks.append(time.perf_counter() - began)
            np.testing.assert_array_equal(table.lookup(ids, touch=False), values_of(ids, dim))
            store.close(flush=False)
            began = time.perf_counter()
            store, table = opened()
            table.lookup(first, touch=False)
            openings.append(time.perf_counter() - began)
        store.close(flush=False)
    records = [float(changed * (4 * dim + KEY_AND_HEADER))] * runs
    report = Report(
        [
            compare("written by a mark", "bytes", written, "the changed records", records).ratio_at_most(MAX_WRITTEN),
            compare("rollback", "s", rollbacks, "opening", openings).ratio_at_most(MAX_OPENINGS),
        ]
    )
    for name, held in _held(array_of(rows, dim)).items():
        copies = [seconds(lambda held=held: copy.deepcopy(held)) for _ in range(runs)]  # type: ignore[misc]
        kept = copy.deepcopy(held)
        back = [seconds(lambda held=held, kept=kept: held.__setitem__(..., kept)) for _ in range(runs)]  # type: ignore[misc]
        report.lines += [
            compare("a mark, until training goes on", "s", marks, f"deepcopy of {name}", copies),
            compare("a mark, until it is complete", "s", whole, f"deepcopy of {name}", copies),
            compare("rollback", "s", rollbacks, f"copying {name} back", back),
        ]
    return report


def _held(array: Floats) -> dict[str, Any]:
    """Return the same rows as an array, and as a tensor if PyTorch is installed."""
    try:
        import torch
    except ImportError:
        return {"an array": array}
    return {"an array": array, "a tensor": torch.from_numpy(array)}
