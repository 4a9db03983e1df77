"""The run of `kvemb bench tier`: each size is loaded once, and the cases that have no result yet are measured."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

from kvemb.tools.bench.measure import scratch
from kvemb.tools.bench.results import Comparison, Report, compare
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.kernel import counted
from kvemb.tools.bench.tier.measures import restart, series, steps
from kvemb.tools.bench.tier.records import Record, Records, machine
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.bench.trained import record_bytes
from kvemb.tools.failures import BadInput
from kvemb.tools.screen import size

MEASURES = {"steps": steps, "series": series, "restart": restart}
# Bytes on disk of one row, for both sides together, including loading and merging.
_DISK = 3.2


def measured(plan: list[Case], settings: Settings, folder: Path | None = None, *, resume: bool = False) -> Report:
    """Return the report of a plan, whose parts are the cases.

    folder: for the tables, which are deleted, and the results, which are kept; None: a temporary one, where nothing is
    kept. Raises BadInput if the system counts no bytes, if the results cannot be used, or if the disk is too small.
    """
    if not counted():
        raise BadInput("kvemb bench tier needs Linux: it reads /proc/self/io, and empties the page cache")
    with ExitStack() as stack:
        place = stack.enter_context(scratch(None) if folder is None else nullcontext(folder.resolve()))
        for leftover in place.glob("kvemb-bench-*"):  # left by a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        records = Records.opened(place, settings, machine(place), resume=resume)
        _check_disk(place, [case.rows for case in plan if case not in records.found], settings)
        facts = {name: value for name, value in records.head["machine"].items() if name != "date"}
        return Report(facts=facts, parts=_parts(plan, settings, records, place, stack.pop_all()))


def _parts(
    plan: list[Case], settings: Settings, records: Records, place: Path, stack: ExitStack
) -> Iterator[list[Comparison]]:
    """Measure each case that has no result, and yield its lines. stack: is left at the end."""
    with stack:
        for at, case in enumerate(plan):
            table = TableOnDisk(place, case.rows, settings.dim)
            if case not in records.found:
                table.load()
                records.add(case, MEASURES[case.kind](table, case, settings, place))
            if all(other.rows != case.rows for other in plan[at + 1 :]):
                table.delete()
            yield _lines(case, records.found[case])


def _check_disk(place: Path, rows: list[int], settings: Settings) -> None:
    needed, free = int(_DISK * max(rows, default=0) * record_bytes(settings.dim)), shutil.disk_usage(place).free
    if needed > free:
        raise BadInput(
            f"{max(rows):,} rows need {size(needed)} in {place}, which has {size(free)} free; give fewer --rows"
        )


def _lines(case: Case, result: Record) -> list[Comparison]:
    peer = "rocksdict by hand"
    if case.kind == "steps":
        caches = [cache for cache in ("warm", "cold") if result[cache]]
        sides = [(cache, result[cache]["kvemb"], result[cache]["by_hand"]) for cache in caches]
        name = "rows_per_s"
        return [
            compare(f"{case}, {cache} page cache", "rows/s", ours[name], peer, theirs[name])
            for cache, ours, theirs in sides
        ]
    if case.kind == "series":
        ours, theirs = result["kvemb"], result["by_hand"]
        return [
            compare(str(case), unit, ours[name], peer, theirs[name])
            for name, unit in (("seconds", "s each"), ("new_bytes", "bytes each"))
        ]
    return [_restart(case, name, result[name]) for name in ("warm", "not_warm", "by_hand")]


def _restart(case: Case, name: str, result: Record) -> Comparison:
    reached = result["full_speed_s"]
    unit = "s to full speed" if reached is not None else "s, and full speed not reached"
    taken = result["open_s"] + sum(result["steps"]) if reached is None else reached
    return compare(f"{case}, {name.replace('_', ' ')}", unit, [taken])
