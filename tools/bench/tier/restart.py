"""Restart to full speed: a table in training is closed and opened, and trains until steps are as fast as before.

The process and the page cache stay the same: a new process adds about a second for imports and compiled kernels, a new
machine a cold page cache.
"""

from __future__ import annotations

import statistics
from itertools import accumulate
from pathlib import Path

from kvemb.tools.bench.measure import until_idle
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.records import Record
from kvemb.tools.bench.tier.sides import Side, both, draw
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.stopping import check

# Full speed is reached at the first ROLLING steps whose mean is at most SLACK times a step before the restart.
ROLLING, SLACK = 5, 1.1
# The most windows of steps after the restart.
WINDOWS = 10


def measure(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return the cost of a restart for kvemb, with and without warm=True, and for the loop written by hand.

    before_s: the median step before it; close_s, open_s; steps: the seconds of each step after it; full_speed_s: since
    the opening began, None if full speed was not reached.
    """
    found: Record = {}
    with both(table, case, settings, folder) as (ours, theirs):
        sides: list[tuple[str, Side, bool]] = [
            ("warm", ours, True),
            ("not_warm", ours, False),
            ("by_hand", theirs, False),
        ]
        for seed, (name, side, warm) in enumerate(sides, start=7):
            check()
            before, *after = draw(case, settings, 1 + WINDOWS, seed)
            step = statistics.median(side.train(before, 5 * settings.seconds))
            until_idle()
            closing, opening = side.reopen(warm=warm)
            steps = side.train([ids for batches in after for ids in batches], 5 * settings.seconds)
            reached = full_speed(step, opening, steps)
            found[name] = {"before_s": step, "close_s": closing, "open_s": opening, "steps": steps}
            found[name]["full_speed_s"] = reached
            until_idle()
    return found


def full_speed(before: float, opening: float, steps: list[float]) -> float | None:
    """Return the seconds from the beginning of the opening to the end of the first steps at full speed."""
    ended = list(accumulate(steps, initial=opening))
    for last in range(ROLLING, len(steps) + 1):
        if ended[last] - ended[last - ROLLING] <= SLACK * ROLLING * before:
            return ended[last]
    return None
