"""The run of `kvemb bench tier`: load each size once, measure the cases that have no result yet."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from pathlib import Path

from kvemb.tools.bench.measure import compile_seconds, scratch
from kvemb.tools.bench.results import Comparison, Report, compare
from kvemb.tools.bench.tier import cases, restart, series, steps
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.counters import counted
from kvemb.tools.bench.tier.records import Record, Records, machine
from kvemb.tools.bench.tier.tables import TableOnDisk
from kvemb.tools.failures import BadInput
from kvemb.tools.screen import Screen, size

MEASURES = {"steps": steps.measure, "series": series.measure, "restart": restart.measure}
# Bytes on disk of one row, for both sides together, including loading and merging.
_DISK = 3.2


def run(
    plan: list[Case],
    settings: Settings,
    screen: Screen,
    folder: Path | None = None,
    *,
    resume: bool = False,
) -> Report:
    """Measure the cases of a plan.

    folder: for the tables, which are deleted, and the results, which are kept; None: a temporary one, where nothing is
    kept. Raises BadInput if the system counts no bytes, if the results cannot be used, or if the disk is too small.
    """
    if not counted():
        raise BadInput("kvemb bench tier needs Linux: it reads /proc/self/io, and empties the page cache")
    with scratch(None) if folder is None else nullcontext(folder.resolve()) as place:
        for leftover in place.glob("kvemb-bench-*"):  # left by a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        records = (Records.resumed if resume else Records.new)(place, settings, machine(place))
        _measure([case for case in plan if case not in records.found], settings, records, place, screen)
        return report(records)


def _measure(todo: list[Case], settings: Settings, records: Records, place: Path, screen: Screen) -> None:
    if not todo:
        return
    _check_disk(place, max(case.rows for case in todo), settings)
    first = {case.rows: case for case in reversed(todo)}
    expected = [cases.seconds(case, settings, loading=first[case.rows] is case) for case in todo]
    screen.milestone(f"{len(todo)} cases, about {_minutes(sum(expected))}")
    compile_seconds(settings.dim)
    began = time.perf_counter()
    with screen.progress("measuring", len(todo)) as advance:
        for at, case in enumerate(todo):
            advance(at, f"{case}; about {_minutes(_left(expected, at, began))} left")
            table, start = TableOnDisk(place, case.rows, settings.dim), time.perf_counter()
            table.load()
            loaded = time.perf_counter()
            result = MEASURES[case.kind](table, case, settings, place)
            result |= {"loading_s": loaded - start, "measuring_s": time.perf_counter() - loaded}
            records.add(case, result)
            left = _minutes(_left(expected, at + 1, began))
            screen.milestone(f"{case}: {_brief(case, result)}; about {left} left")
            if all(other.rows != case.rows for other in todo[at + 1 :]):
                table.delete()
        advance(len(todo), "")


def _left(expected: list[float], done: int, began: float) -> float:
    """Return the seconds left: the expected ones, corrected by the time taken so far."""
    taken = time.perf_counter() - began
    pace = taken / sum(expected[:done]) if done else 1.0
    return pace * sum(expected[done:])


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _check_disk(place: Path, rows: int, settings: Settings) -> None:
    needed, free = int(_DISK * rows * settings.record_bytes), shutil.disk_usage(place).free
    if needed > free:
        raise BadInput(f"{rows:,} rows need {size(needed)} in {place}, which has {size(free)} free; give fewer --rows")


def _brief(case: Case, result: Record) -> str:
    """Return a case's main figures as a line for the screen."""
    line = _lines(case, result)[0]
    peer = f", by hand {line.peer.median:.3g}" if line.peer else ""
    return f"{line.ours.median:.3g}{peer} {line.unit}"


def report(records: Records) -> Report:
    """Return all results as lines."""
    facts = {name: value for name, value in records.head["machine"].items() if name != "date"}
    return Report([line for case, result in records.found.items() for line in _lines(case, result)], facts)


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
