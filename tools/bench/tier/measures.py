"""The measurements of `kvemb bench tier`: training steps, a series of checkpoints, and a restart; one for each case.

The two sides take turns and get the same batches.
"""

from __future__ import annotations

import shutil
import statistics
import time
from itertools import accumulate
from pathlib import Path

import numpy as np

from kvemb.tools.bench.data import Ids
from kvemb.tools.bench.measure import new_bytes, scratch, until_idle
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.kernel import empty, usage
from kvemb.tools.bench.tier.records import Record
from kvemb.tools.bench.tier.sides import Side, both, draw, in_page_cache
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.bench.trained import record_bytes
from kvemb.tools.stopping import check

# Full speed is reached at the first ROLLING steps whose mean is at most SLACK times a step before the restart.
ROLLING, SLACK = 5, 1.1
# The most windows of steps after the restart.
WINDOWS = 10


def steps(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return, for each state of the page cache, "warm" (None if impossible) and "cold", the windows of each side.

    A cold window begins with no page of the tables in the page cache, which fills again during the window. For tables
    that do not fit the page cache, only cold windows are measured. Raises AssertionError if the sides took the same
    steps but have different rows.
    """
    with both(table, case, settings, folder) as (ours, theirs):
        sides: dict[str, Side] = {"kvemb": ours, "by_hand": theirs}
        memory = settings.memory(case.hot_rows)
        found: Record = {"memory": memory, "table_bytes": table.nbytes, "warm": None}
        _windows(sides, case, settings, 1, 3, cold=False)  # warm up
        before = ours.table.stats
        if in_page_cache(table, memory):
            found["warm"] = _windows(sides, case, settings, settings.runs, 4, cold=False)
        found["cold"] = _windows(sides, case, settings, settings.runs, 5, cold=True)
        found["hit_rate"] = (ours.table.stats - before).hit_rate
        if ours.steps == theirs.steps:
            seen = np.unique(draw(case, settings, 1, 4)[0][-1])
            np.testing.assert_allclose(ours.values(seen), theirs.values(seen), rtol=1e-4, atol=1e-5)
    return found


def _windows(sides: dict[str, Side], case: Case, settings: Settings, runs: int, seed: int, *, cold: bool) -> Record:
    """Return the figures of every window by side, by name."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for run, batches in enumerate(draw(case, settings, runs, seed)):
        for name in sides if run % 2 == 0 else reversed(sides):
            check()
            if cold:
                empty(sides[name].folder)
            taken[name].append(_figures(sides[name], batches, settings))
    return {name: {each: [one[each] for one in windows] for each in windows[0]} for name, windows in taken.items()}


def _figures(side: Side, batches: list[Ids], settings: Settings) -> dict[str, float]:
    """Train for a window; return rows/s, and the costs per row, with the flushes and merges after it.

    Rows that wait to be written count as written once.
    """
    waiting, before, began = side.rows_waiting(), usage(), time.perf_counter()
    rows = settings.batch * len(side.train(batches, settings.seconds))
    wall, used = until_idle() - began, usage() - before
    written = used.written + record_bytes(settings.dim) * (side.rows_waiting() - waiting)
    return {
        "rows_per_s": rows / wall,
        "cpu_us": 1e6 * used.cpu / rows,
        "read_bytes": used.read / rows,
        "written_bytes": written / rows,
    }


def series(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return the changed bytes, and for each side lists of seconds, new_bytes and written_bytes of checkpoints.

    Between two checkpoints each side takes the same steps. New bytes are those of files that the previous checkpoint
    lacks; written bytes are all bytes written to the disk since then, merges included.
    """
    work = draw(case, settings, settings.checkpoints + 1, 6)
    changed = [record_bytes(settings.dim) * len(np.unique(np.concatenate(batches))) for batches in work[1:]]
    found: Record = {"changed_bytes": changed}
    with both(table, case, settings, folder) as (ours, theirs), scratch(folder) as place:
        sides: dict[str, Side] = {"kvemb": ours, "by_hand": theirs}
        for name, side in sides.items():
            (place / name).mkdir()
            side.train(work[0], 10 * settings.seconds)
            side.save(place / name / "0")
            found[name] = {"seconds": [], "new_bytes": [], "written_bytes": []}
        for number, batches in enumerate(work[1:], start=1):
            for name, side in sides.items():
                until_idle()
                check()
                written = usage().written
                side.train(batches, 10 * settings.seconds)
                began = time.perf_counter()
                after, before = place / name / f"{number}", place / name / f"{number - 1}"
                side.save(after)
                found[name]["seconds"].append(time.perf_counter() - began)
                until_idle()
                found[name]["written_bytes"].append(usage().written - written)
                found[name]["new_bytes"].append(new_bytes(after, before))
                shutil.rmtree(before)
    return found


def restart(table: TableOnDisk, case: Case, settings: Settings, folder: Path) -> Record:
    """Return the cost of a restart for kvemb, with and without warm=True, and for the loop written by hand.

    A table in training is closed and opened, and trains until steps are as fast as before. The process and the page
    cache stay the same: a new process adds about a second for imports and compiled kernels, a new machine a cold page
    cache.

    before_s: the median step before it; close_s, open_s; steps: the seconds of each step after it; full_speed_s: since
    the opening began, None if full speed was not reached.
    """
    found: Record = {}
    with both(table, case, settings, folder) as (ours, theirs):
        sides: dict[str, Side] = {"warm": ours, "not_warm": ours, "by_hand": theirs}
        for seed, (name, side) in enumerate(sides.items(), start=7):
            check()
            before, *after = draw(case, settings, 1 + WINDOWS, seed)
            step = statistics.median(side.train(before, 5 * settings.seconds))
            until_idle()
            closing, opening = side.reopen(warm=name == "warm")
            taken = side.train([ids for batches in after for ids in batches], 5 * settings.seconds)
            found[name] = {"before_s": step, "close_s": closing, "open_s": opening, "steps": taken}
            found[name]["full_speed_s"] = full_speed(step, opening, taken)
            until_idle()
    return found


def full_speed(before: float, opening: float, steps: list[float]) -> float | None:
    """Return the seconds from the beginning of the opening to the end of the first steps at full speed."""
    ended = list(accumulate(steps, initial=opening))
    for last in range(ROLLING, len(steps) + 1):
        if ended[last] - ended[last - ROLLING] <= SLACK * ROLLING * before:
            return ended[last]
    return None
