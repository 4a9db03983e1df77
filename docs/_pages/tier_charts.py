"""The charts of the page, drawn from the results as SVG files.

Each function returns None if the results lack its data. Solid lines are kvemb, dashed lines the loop written by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from pictures import Categories, picture
from tier_figures import Found, grid, growing, middle, one

from kvemb.tools.bench.tier.records import Record
from kvemb.tools.report.axes import Linear, Log, Scale, number, top
from kvemb.tools.report.charts import Curve

CACHES = ("warm", "cold")
SIDES = (("kvemb", "kvemb", False), ("by_hand", "by hand", True))
# The chart of the restart shows the mean of this many steps.
SMOOTHING = 20
_HOT = "hot rows, as a share of the table"


def drawn(found: Found, batch: int) -> dict[str, str]:
    """Return the SVG files for which there are results, by name, in the order of the page. batch: rows of a step."""
    charts = {
        "rows": _by_hot_share(
            found, "Training speed", "rows/s, log scale; page cache warm", "warm", "rows_per_s", log=True
        ),
        "cpu": _by_hot_share(
            found, "CPU time of a row", "us, log scale; all threads; page cache warm", "warm", "cpu_us", log=True
        ),
        "written": _by_hot_share(
            found, "Written to disk for a row", "bytes, flushes and merges included", "warm", "written_bytes"
        ),
        "read": _by_hot_share(found, "Read from disk for a row", "bytes; page cache cold", "cold", "read_bytes"),
        "cold": _page_cache(found),
        "growth": _growth(found),
        "checkpoint-bytes": _checkpoint_bytes(found),
        "checkpoint-seconds": _checkpoint_seconds(found),
        "restart": _restart(found, batch),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


# A line for each side: what it shows, the state of the page cache, and the results along the axis.
Group = tuple[str, str, list[tuple[float, Record]]]


def _sides(groups: Sequence[Group], name: str) -> list[Curve]:
    """Return the curves of a figure, without those that have no results."""
    curves = []
    for side, label, dashed in SIDES:
        for colour, (what, cache, along) in enumerate(groups):
            points = [(at, middle(result[cache][side], name)) for at, result in along if result[cache]]
            curves.append(Curve(f"{label}, {what}", points, colour, dashed))
    return [curve for curve in curves if curve.points]


def _along_hot(found: Found, zipf: float) -> list[tuple[float, Record]]:
    shares = sorted({case.hot for case in grid(found)})
    return [(float(shares.index(case.hot)), each) for case, each in grid(found).items() if case.zipf == zipf]


def _by_hot_share(found: Found, title: str, note: str, cache: str, name: str, *, log: bool = False) -> str | None:
    skews = sorted({case.zipf for case in grid(found)})
    curves = _sides([(f"Zipf {skew:g}", cache, _along_hot(found, skew)) for skew in skews], name)
    return picture(title, curves, _shares(found), _up(curves, log=log), across=_HOT, note=note) if curves else None


def _page_cache(found: Found) -> str | None:
    skews = sorted({case.zipf for case in grid(found)})
    if not skews:
        return None
    skew = skews[len(skews) // 2]
    curves = _sides([(cache, cache, _along_hot(found, skew)) for cache in CACHES], "rows_per_s")
    note = f"rows/s, log scale; Zipf {skew:g}"
    return picture("Page cache warm and cold", curves, _shares(found), _up(curves, log=True), across=_HOT, note=note)


def _growth(found: Found) -> str | None:
    cases = growing(found)
    if len(cases) < 2:
        return None
    case = next(iter(cases))
    along = [(float(at), result) for at, result in enumerate(cases.values())]
    curves = _sides([(cache, cache, along) for cache in CACHES], "rows_per_s")
    names = Categories(tuple(number(case.rows) for case in cases))
    note = f"rows/s, log scale; {100 * case.hot:g}% hot, Zipf {case.zipf:g}"
    return picture("Growth of the table", curves, names, _up(curves, log=True), across="rows in the table", note=note)


def _checkpoint_bytes(found: Found) -> str | None:
    result = one(found, "series")
    if result is None:
        return None
    curves = [_series("kvemb, new files", result["kvemb"]["new_bytes"], 0)]
    curves += [_series("by hand, new files", result["by_hand"]["new_bytes"], 0, dashed=True)]
    curves += [_series("rows that changed", result["changed_bytes"], 1)]
    along = _numbers(len(result["changed_bytes"]))
    note = "bytes on disk that the previous one lacks"
    return picture("Bytes of a checkpoint", curves, along, _up(curves), across="number of the checkpoint", note=note)


def _checkpoint_seconds(found: Found) -> str | None:
    result = one(found, "series")
    if result is None:
        return None
    curves = [_series(label, result[side]["seconds"], 0, dashed=dashed) for side, label, dashed in SIDES]
    along = _numbers(len(result["changed_bytes"]))
    note = "until it is complete and durable"
    return picture("Seconds of a checkpoint", curves, along, _up(curves), across="number of the checkpoint", note=note)


def _restart(found: Found, batch: int) -> str | None:
    result = one(found, "restart")
    if result is None:
        return None
    reached = [each["full_speed_s"] or math.inf for each in (result[name] for name in RESTARTS)]
    curves = []
    for colour, (name, label) in enumerate(RESTARTS.items()):
        side = result[name]
        ended = list(accumulate(side["steps"], initial=side["open_s"]))
        points = []
        for at in range(1, len(ended)):
            first = max(0, at - SMOOTHING)
            if ended[at] <= 2 * max(reached):
                points.append((ended[at], batch * (at - first) / (ended[at] - ended[first])))
        curves.append(Curve(label, _fewer(points, 40), colour, name == "by_hand"))
    curves = [curve for curve in curves if curve.points]
    along = Linear(0, max(x for curve in curves for x, _ in curve.points))
    note = f"rows/s, means of {SMOOTHING} steps"
    return picture("Restart", curves, along, _up(curves), across="seconds since the opening began", note=note)


RESTARTS = {"warm": "kvemb, warm=True", "not_warm": "kvemb", "by_hand": "by hand"}


def _fewer(points: list[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    every = -(-len(points) // most) if points else 1
    return points[::every]


def _series(name: str, values: Sequence[float], colour: int, *, dashed: bool = False) -> Curve:
    return Curve(name, list(enumerate(map(float, values), start=1)), colour, dashed)


def _numbers(count: int) -> Scale:
    return Linear(0.5, count + 0.5, whole=True)


def _shares(found: Found) -> Scale:
    return Categories(tuple(f"{100 * share:g}%" for share in sorted({case.hot for case in grid(found)})))


def _up(curves: Sequence[Curve], *, log: bool = False) -> Scale:
    values = [y for curve in curves for _, y in curve.points]
    if not log:
        return Linear(0, top(values))
    least = max(min(values), 1e-3)
    return Log(10.0 ** math.floor(math.log10(least)), 1.3 * max(*values, least))
