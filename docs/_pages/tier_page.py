"""Writes the page docs/inside/tier.md from the results of `kvemb bench tier`: `tier_page.py tier.jsonl tier.md`.

Its charts, and a copy of the results, are written beside it.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import tier_figures as figures
import tier_prose as prose
from pictures import WIDE
from tier_charts import RESTARTS, drawn
from tier_figures import grid, growing, one

from kvemb.tools.bench import results
from kvemb.tools.bench.tier.cases import Case, Settings
from kvemb.tools.bench.tier.command import DEFAULTS, HOT, ROWS, ZIPF
from kvemb.tools.bench.tier.measures import ROLLING, SLACK
from kvemb.tools.bench.tier.records import NAME, Record, Records
from kvemb.tools.bench.trained import cell_bytes, record_bytes
from kvemb.tools.failures import BadInput
from kvemb.tools.report.axes import number
from kvemb.tools.screen import size

_ALT = {
    "rows": "Training speed in rows a second by hot share, a line for each skew, beside the loop by hand",
    "cpu": "CPU time of a row by hot share, a line for each skew, beside the loop by hand",
    "cold": "Training speed by hot share with a warm and with a cold page cache",
    "read": "Bytes read from the disk for a row by hot share, page cache cold",
    "written": "Bytes written to the disk for a row by hot share",
    "growth": "Training speed by the number of rows",
    "checkpoint-bytes": "New bytes on disk of each checkpoint of a series",
    "checkpoint-seconds": "Seconds of each checkpoint of a series",
    "restart": "Training speed after a restart, in rows a second",
}
_COLUMNS = [
    *("rows", "hot", "Zipf", "memory", "hit rate", "rows/s, warm", "times", "us CPU a row", "bytes written"),
    *("rows/s, cold", "times", "bytes read, cold"),
]


def write(page: Path, records: Records) -> None:
    """Write the page, its charts and a copy of the results. Raises BadInput if nothing was measured."""
    if not records.found:
        raise BadInput("there are no results to make a page of")
    folder, copied = page.parent, page.parent / NAME
    charts = drawn(records.found, records.head["settings"]["batch"])
    for name, svg in charts.items():
        (folder / f"tier-{name}.svg").write_text(svg, encoding="utf-8")
    if not (copied.exists() and copied.samefile(records.path)):
        shutil.copyfile(records.path, copied)
    page.write_text(text(records, list(charts)), encoding="utf-8")


def text(records: Records, charts: Sequence[str]) -> str:
    """Return the page as Markdown. charts: the names of the existing files."""
    settings, found = Settings(**records.head["settings"]), records.found
    again = prose.AGAIN.format(command=command(found, settings), results=NAME)
    parts = [
        "# Training beside a loop by hand",
        _summary(found, settings),
        _pictures(["rows", "cpu", "cold", "read"], charts),
        _method(records, settings),
        *_section("Growth, and bytes written", _growth(records), _pictures(["growth", "written"], charts)),
        *_section(
            "Checkpoints while training",
            _series(found, settings),
            _pictures(["checkpoint-bytes", "checkpoint-seconds"], charts),
        ),
        *_section("Restart", _restart(found), _pictures(["restart"], charts)),
        *_section("Numbers", "kvemb / by hand; the hit rate is kvemb's.", _numbers(found)),
        again,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command(cases: Iterable[Case], settings: Settings) -> str:
    """Return the command line for these cases and settings."""
    measured = list(cases)
    given: list[tuple[str, Sequence[float], Sequence[float]]] = [
        ("rows", list(dict.fromkeys(case.rows for case in measured)), ROWS),
        ("hot", sorted({case.hot for case in measured}), HOT),
        ("zipf", sorted({case.zipf for case in measured}), ZIPF),
    ]
    words = [f"--{name} {value}" for name, values, usual in given if values != usual for value in values]
    usual_of = vars(DEFAULTS)
    words += [f"--{name} {value}" for name, value in vars(settings).items() if value != usual_of[name]]
    return " ".join(["kvemb bench tier", *words, "--folder FOLDER --resume"])


def _section(title: str, said: str, content: str) -> list[str]:
    return [f"## {title}", said, content] if content else []


def _pictures(names: Sequence[str], charts: Sequence[str]) -> str:
    there = [name for name in names if name in charts]
    return "\n".join(f'<img src="tier-{name}.svg" width="{WIDE}" alt="{_ALT[name]}">' for name in there)


def _summary(found: dict[Case, Record], settings: Settings) -> str:
    cases = grid(found)
    if not cases:
        return ""
    rows = next(iter(cases)).rows
    measured = [cache for cache in ("warm", "cold") if all(result[cache] for result in cases.values())]
    ratios = {cache: [figures.ratio(result, cache) for result in cases.values()] for cache in measured}
    times = [f"{min(each):.1f} to {max(each):.1f} times as fast with a {cache}" for cache, each in ratios.items()]
    table = size(rows * record_bytes(settings.dim))
    return prose.SUMMARY.format(rows=rows, dim=settings.dim, table=table, times=" page cache and ".join(times))


def _method(records: Records, settings: Settings) -> str:
    machine = dict(records.head["machine"])
    machine["memory"] = size(machine["memory_bytes"])
    machine["versions"] = ", ".join(f"{name} {each}" for name, each in machine["versions"].items())
    cell = f"{cell_bytes(settings.dim)} bytes"
    return prose.METHOD.format(**machine, **vars(settings), cell=cell, record=record_bytes(settings.dim))


def _growth(records: Records) -> str:
    cases = growing(records.found)
    if len(cases) < 2:
        return ""
    said = prose.GROWTH.format(largest=size(list(cases.values())[-1]["table_bytes"]))
    outside = ", ".join(f"{case.rows:,}" for case, result in cases.items() if not result["warm"])
    memory = size(records.head["machine"]["memory_bytes"])
    return said + (prose.OUTSIDE.format(rows=outside, memory=memory) if outside else "")


def _series(found: dict[Case, Record], settings: Settings) -> str:
    result = one(found, "series")
    if result is None:
        return ""
    changed = statistics.fmean(result["changed_bytes"])
    ours, theirs = (statistics.fmean(result[side]["written_bytes"]) / changed for side in ("kvemb", "by_hand"))
    counts = {"count": len(result["changed_bytes"]), "steps": settings.steps, "changed": size(changed)}
    return prose.SERIES.format(**counts, ours=ours, theirs=theirs)


def _restart(found: dict[Case, Record]) -> str:
    result = one(found, "restart")
    if result is None:
        return ""
    lines = ["| | close | open | full speed after | a step before |", "|---|---|---|---|---|"]
    for name, label in RESTARTS.items():
        each = result[name]
        reached = "not reached" if each["full_speed_s"] is None else f"{each['full_speed_s']:.2f} s"
        times = [f"{each['close_s']:.2f} s", f"{each['open_s']:.2f} s", reached, f"{1000 * each['before_s']:.1f} ms"]
        lines.append(f"| {label} | {' | '.join(times)} |")
    return prose.RESTART.format(rolling=ROLLING, slack=SLACK) + "\n\n" + "\n".join(lines)


def _numbers(found: dict[Case, Record]) -> str:
    """Return the table of all training steps."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    steps = sorted((case for case in found if case.kind == "steps"), key=lambda case: (case.rows, case.hot, case.zipf))
    for case in steps:
        result = found[case]
        cells = [number(case.rows), f"{100 * case.hot:g}%", f"{case.zipf:g}", size(result["memory"])]
        cells += [f"{result['hit_rate']:.3f}", _pair(result, "warm", "rows_per_s")]
        cells += [f"{figures.ratio(result, 'warm'):.1f}" if result["warm"] else "", _pair(result, "warm", "cpu_us")]
        cells += [_pair(result, "warm", "written_bytes"), _pair(result, "cold", "rows_per_s")]
        cells += [f"{figures.ratio(result, 'cold'):.1f}", _pair(result, "cold", "read_bytes")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if steps else ""


def _pair(result: Record, cache: str, name: str) -> str:
    if not result[cache]:
        return ""
    return " / ".join(results.number(float(figures.middle(result[cache][side], name))) for side in ("kvemb", "by_hand"))


if __name__ == "__main__":
    write(Path(sys.argv[2]), Records.read(Path(sys.argv[1])))
