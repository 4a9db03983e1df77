"""Training steps: rows/s, CPU time and bytes per row, with a warm and with a cold page cache.

The two sides take turns, one window each, with the same batches. A cold window begins with no page of the tables in the
page cache, which fills again during the window. For tables that do not fit the page cache, only cold windows are
measured.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.counters import figures_of
from kvemb.tools.bench.tier.page_cache import empty
from kvemb.tools.bench.tier.records import Record
from kvemb.tools.bench.tier.sides import ByHand, Kvemb, Side, both, draw, in_page_cache
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.bench.trained import record_bytes
from kvemb.tools.stopping import check


def measure(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return, for each state of the page cache, "warm" (None if impossible) and "cold", the windows of each side.

    Raises AssertionError if the sides took the same steps but have different rows.
    """
    with both(table, case, settings, folder) as (ours, theirs):
        memory = settings.memory(case.hot_rows)
        found: Record = {"memory": memory, "table_bytes": table.nbytes, "warm": None}
        _windows(ours, theirs, case, settings, 1, 3, cold=False)  # warm up
        before = ours.table.stats
        if in_page_cache(table, memory):
            found["warm"] = _windows(ours, theirs, case, settings, settings.runs, 4, cold=False)
        found["cold"] = _windows(ours, theirs, case, settings, settings.runs, 5, cold=True)
        after = ours.table.stats
        hits, misses = after.hits - before.hits, after.misses - before.misses
        found["hit_rate"] = hits / max(1, hits + misses)
        if ours.steps == theirs.steps:
            seen = np.unique(draw(case, settings, 1, 4)[0][-1])
            np.testing.assert_allclose(ours.values(seen), theirs.values(seen), rtol=1e-4, atol=1e-5)
    return found


def _windows(
    ours: Kvemb, theirs: ByHand, case: Case, settings: Settings, runs: int, seed: int, *, cold: bool
) -> Record:
    """Return the figures of every window by side, by name."""
    taken: dict[str, list[dict[str, float]]] = {"kvemb": [], "by_hand": []}
    for run, batches in enumerate(draw(case, settings, runs, seed)):
        sides: list[tuple[str, Side]] = [("kvemb", ours), ("by_hand", theirs)]
        for name, side in sides if run % 2 == 0 else reversed(sides):
            check()
            if cold:
                empty(side.folder)
            waiting, steps = side.rows_waiting(), side.steps
            figures = figures_of(side.train, batches, settings.seconds, settings.batch)
            rows = (side.steps - steps) * settings.batch
            figures["written_bytes"] += (side.rows_waiting() - waiting) * record_bytes(settings.dim) / rows
            taken[name].append(figures)
    return {name: {each: [one[each] for one in windows] for each in windows[0]} for name, windows in taken.items()}
