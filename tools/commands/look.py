"""`kvemb info`, `ls`, `peek`, `stats`, `diff` and `report`: commands that read and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

import kvemb
from kvemb.masking import masked
from kvemb.tools import inspect, table_stats
from kvemb.tools.failures import WrongUsage
from kvemb.tools.limits import MAX_STORED_ROWS
from kvemb.tools.report.axes import Time, local_time
from kvemb.tools.report.spreads import Spread
from kvemb.tools.screen import PLACE, AsJson, Every, Quiet, Screen, Variable, check_one, counted, local_path, size

Place = Annotated[str, typer.Argument(metavar="PATH", help=PLACE)]
# How many numbers of a row, and how many characters of an attached value, are printed.
ROW_NUMBERS = 6
MAX_CHARACTERS = 100
BARS = " ▁▂▃▄▅▆▇█"


def info(path: Place, as_json: AsJson = False) -> None:
    """Show what a checkpoint or a store contains: its variables, files, parent, extra values and marks.

    For each variable: rows, dtype, dim, optimizer, policy, initializer, and how many calls recorded uses. A variable
    with rows on a GPU also shows how many were hot on the GPU and in host memory when it was saved. A variable with an
    Admission also shows how many sightings of keys without a row it has counted. A variable with max_rows or ttl shows
    them. For each mark of a store: where it is, to be read as a checkpoint, and the bytes of files that it alone keeps.

    Example: kvemb info checkpoints/00000042
    """
    found = _info(path)
    tables = sum(nbytes for name, nbytes in found.files.items() if name.endswith(".sst"))
    lines = [
        ("kind", f"{found.kind}, made {local_time(found.created, seconds=True)}"),
        ("id", found.id),
        ("parent", found.parent or "none"),
        ("files", f"{len(found.files):,}, {size(found.nbytes)} (tables {size(tables)})"),
    ]
    lines += [(f"file {name}", size(nbytes)) for name, nbytes in found.attached.items()]
    lines += [("extra", _short(json.dumps({name: value}))) for name, value in found.extra.items()]
    for mark in found.marks:
        which = "mark" if mark.name is None else f"mark {mark.name}"
        lines.append(
            (which, f"{mark.path}, made {local_time(mark.created, seconds=True)}, keeps {size(mark.kept_bytes)}")
        )
    for each in found.variables:
        described = each.described
        kind = f"{described['dim']} {described['value_dtype']}, keys {described['key_dtype']}"
        lines.append((each.name, f"{counted(each.rows, 'row')} of {kind}"))
        held = [f"{held['rows']:,} {_where(place)} in {size(held['bytes'])}" for place, held in each.tiers.items()]
        lines += [("", f"hot when saved: {', '.join(held)}")] if held else []
        lines.append(("", f"uses recorded by {counted(described['recording_calls'], 'call')}"))
        if (seen := each.sightings) is not None:
            told = f"admission: {counted(seen['counted'], 'sighting')} of keys without a row"
            since = "since the counters began or were last halved"
            size_text = f"{size(seen['counters'])} of counters, {size(seen['bytes'])} on disk"
            lines.append(("", f"{told} ({since}); {size_text}"))
        parts = [what for what in ("optimizer", "policy", "initializer") if described[what]]
        lines += [("", f"{what}: {_brief(described[what])}") for what in parts]
        bounds = [f"{counted(described['max_rows'], 'row')}"] if described["max_rows"] else []
        bounds += [f"{described['ttl']:,g} seconds since a row's last change"] if described["ttl"] else []
        lines += [("", f"bounds: {' and '.join(bounds)}")] if bounds else []
    summary = {**asdict(found), "path": masked(path), "nbytes": found.nbytes}
    Screen(False, as_json).close(f"kvemb info {path}", lines, summary)


def _info(path: str) -> inspect.Info:
    found = inspect.info(path)
    if found.newest:
        typer.echo(masked(f"{found.path}, the newest checkpoint of {path}:"), err=True)
    return found


def _where(place: str) -> str:
    return "in the host's memory" if place == "host" else f"on {place}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 4] + " ..."


def _brief(described: dict[str, Any]) -> str:
    """Return a description as a call: for an optimizer, the learning rate and parameters that are not the default."""
    name = described.get("kind") or described.get("name")
    optimizer = kvemb.optimizers.KINDS.get(name) if "name" in described and isinstance(name, str) else None
    usual = {} if optimizer is None else {each.name: each.default for each in fields(optimizer)}
    usual.pop("learning_rate", None)
    arguments = {key: value for key, value in described.items() if key not in ("kind", "name")}
    told = ", ".join(f"{key}={value}" for key, value in arguments.items() if key not in usual or value != usual[key])
    return f"{name}({told})"


def ls(
    path: Place,
    files: Annotated[bool, typer.Option("--files", help="List files instead of variables.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the variables and their row counts, or with --files the files and their sizes in bytes.

    Example: kvemb ls store --files
    """
    found = _info(path)
    screen = Screen(False, as_json)
    listed = found.files if files else {each.name: each.rows for each in found.variables}
    if as_json:
        screen.close("", [], dict(listed))
        return
    for name, number in listed.items():
        screen.print_line(f"{number:>15,}  {name}")


def peek(
    path: Place,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEYS", help="The keys of the rows. Without keys: the first rows."),
    ] = None,
    variable: Variable = None,
    count: Annotated[int, typer.Option(min=1, max=MAX_STORED_ROWS, help="Number of rows, if no key is given.")] = 10,
    neighbours: Annotated[
        int, typer.Option(min=0, max=MAX_STORED_ROWS, help="Number of nearest rows, by cosine, to show for each.")
    ] = 0,
    every: Every = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show rows by key, in the order given; with --all, the first rows of all variables.

    With --neighbours, also shows the rows nearest to each by cosine. The exit code is 1 if a key is missing.

    Example: kvemb peek checkpoints/00000042 17 42 --variable users --neighbours 5
    """
    check_one(variable, every)
    screen = Screen(quiet, as_json)
    if every:
        if keys:
            raise WrongUsage("--all shows the first rows of every variable; with keys, name one: --variable NAME")
        with screen.counting("peek") as update:
            found = inspect.peek_all(path, count=count, neighbours=neighbours, progress=update)
        tables = {name: {"variable": name, "rows": list(_records(each))} for name, each in found.items()}
        if as_json:
            screen.close("", [], {"variables": list(tables.values())})
            return
        for name, each in found.items():
            screen.close(f"kvemb peek {path} --variable {name}", _peeked(each, None, tables[name]["rows"]), {})
        return
    with screen.counting("peek") as update:
        one = inspect.peek(path, variable, keys, count=count, neighbours=neighbours, progress=update)
    records = list(_records(one))
    screen.close(f"kvemb peek {path}", _peeked(one, keys, records), {"rows": records, "missing": one.missing})
    if one.missing:
        raise typer.Exit(1)


def _peeked(found: inspect.Peek, keys: list[str] | None, records: Any) -> list[tuple[str, str]]:
    """Return a line for each row, in the order of the keys asked for, and one for each neighbour."""
    lines, following, missing = [], iter(records), {str(key) for key in found.missing}
    for key in keys or found.rows.keys.tolist():
        if str(key) in missing:
            lines.append((str(key), "missing"))
            continue
        row = next(following)
        numbers = row["values"]
        start = " ".join(f"{number:.4g}" for number in numbers[:ROW_NUMBERS])
        more = " ..." if len(numbers) > ROW_NUMBERS else ""
        score = local_time(row["score"], seconds=True) if found.scores_are_times else f"{row['score']:g}"
        lines.append((str(key), f"{start}{more}   score {score}, changed at call {row['step']:,}"))
        lines += [("", f"{other}  cosine {cosine:.4f}") for other, cosine in row["neighbours"]]
    return lines


def _records(found: inspect.Peek) -> Iterator[dict[str, Any]]:
    """Yield each row as a JSON object: key, values, score, step, neighbours, and each slot by its name."""
    rows = found.rows
    assert rows.scores is not None
    assert rows.steps is not None
    for at, key in enumerate(rows.keys.tolist()):
        yield {
            "key": key,
            "values": rows.values[at].astype(float).tolist(),
            "score": float(rows.scores[at]),
            "step": int(rows.steps[at]),
            "neighbours": found.neighbours.get(key, []),
            **{slot: array[at].astype(float).tolist() for slot, array in (rows.slots or {}).items()},
        }


def stats(
    path: Place, variable: Variable = None, every: Every = False, quiet: Quiet = False, as_json: AsJson = False
) -> None:
    """Show statistics of a variable: norms, scores, ages, means, duplicates, NaNs, rows never trained.

    With --all, shows those of all variables.

    Example: kvemb stats checkpoints/00000042 --variable users
    """
    check_one(variable, every)
    screen = Screen(quiet, as_json)
    with screen.counting("stats") as update:
        if every:
            tables = table_stats.all_stats(path, progress=update)
        else:
            tables = [table_stats.stats(path, variable, progress=update)]
    if every and as_json:
        screen.close("", [], {"variables": [found.as_json() for found in tables]})
        return
    for found in tables:
        screen.close(f"kvemb stats {path} --variable {found.variable}", _of_table(found), found.as_json())


def _of_table(found: table_stats.TableStats) -> list[tuple[str, str]]:
    mean, spread = found.mean, found.spread
    not_finite = {"NaN": found.nan, "infinity": found.infinite, "either in their slots": found.slots}
    told = ", ".join(f"{counted(count, 'row')} with {what}" for what, count in not_finite.items() if count)
    return [
        ("rows", f"{found.rows:,}"),
        ("uses recorded by", counted(found.recording_calls, "call")),
        ("as initialized", counted(found.dead, "row")),
        ("equal to another", counted(found.duplicates, "row")),
        ("not finite", f"{told}: {', '.join(map(str, found.not_finite_keys))}" if told else "none"),
        ("norm", _histogram(found.sizes)),
        ("score", "none: there is no policy" if found.scores is None else _histogram(found.scores)),
        ("age in calls", _histogram(found.ages)),
        ("mean of a column", f"{min(mean):.4g} to {max(mean):.4g}" if mean else ""),
        ("spread of a column", f"{min(spread):.4g} to {max(spread):.4g}" if spread else ""),
    ]


def _histogram(found: Spread | None) -> str:
    """Return the smallest number, bars, and the largest number; the outer bars are of all numbers beyond."""
    if found is None or found.bins is None:
        return "none"
    bins = found.bins
    counts = [bins.under, *bins.counts.tolist(), bins.over]
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // max(counts))] for count in counts)
    ends = [found.percentiles[at][1] for at in (0, -1)]
    timed = isinstance(bins.scale, Time)
    least, most = (local_time(end, seconds=True) if timed else bins.scale.format(end) for end in ends)
    return f"{least} {bars.strip()} {most}"


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=PLACE)],
    b: Annotated[str, typer.Argument(metavar="B", help="The checkpoint, store or series to compare it with.")],
    variable: Annotated[str | None, typer.Option(help="Compare only this variable.")] = None,
    top: Annotated[
        int, typer.Option(min=0, max=MAX_STORED_ROWS, help="Number of rows to list: those that moved most.")
    ] = 10,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the rows that differ to this new Parquet file.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show the differences between two checkpoints or stores.

    Lists tables that only one of them has; counts rows added, removed and changed; shows how far rows moved, and which
    moved most.

    Example: kvemb diff checkpoints/00000041 checkpoints/00000042 --variable users
    """
    from kvemb.tools import diff as differing

    screen = Screen(quiet, as_json)
    with screen.counting("diff") as update:
        found = differing.diff(a, b, variable=variable, top=top, out=out, progress=update)
    lines = []
    for each in found:
        if each.table != "common":
            lines.append((each.variable, f"table {each.table}, with {counted(each.added + each.removed, 'row')}"))
            continue
        how = "read from the recorded changes" if each.recorded else "both tables were read"
        counts = {"added": each.added, "removed": each.removed, "changed": each.changed}
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        lines.append((each.variable, f"{told or 'no difference'}; {how}"))
        lines += [("", f"{each.moved:,} moved; relative to the row before:")] * bool(each.moved)
        bins = zip(each.l2.upto, each.l2.counts, strict=True)
        lines += [("", f"  {_upto(most):>11}: {count:,}") for most, count in bins if count]
        lines += [("", "moved most:")] * bool(each.most)
        lines += [("", f"  key {row.key}: l2 {row.l2:.4g}, cosine {row.cosine:.4f}") for row in each.most]
    if out is not None:
        out = masked(out)
        lines.append(("wrote", out))
    screen.close(f"kvemb diff {a} {b}", lines, {"variables": [asdict(each) for each in found], "out": out})


def _upto(most: float) -> str:
    return "0" if most == 0 else "more" if most == float("inf") else f"up to {most:g}"


def report(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", parser=local_path, help="A checkpoint, a store, or a local series.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="A new HTML file, or a URL.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about a checkpoint, a store or a series.

    For a series it shows growth and churn. For each variable it shows norms, scores, ages, how far rows moved, and a
    projection. If a checkpoint of the series cannot be read, the page names it, and the exit code is 1.

    Example: kvemb report checkpoints model.html
    """
    from kvemb.tools.report.page import report as write

    screen = Screen(quiet, as_json)
    with screen.counting("report") as update:
        made = write(path, out, progress=update)
    lines = [("wrote", made.out), *((f"{name} cannot be read", why) for name, why in made.damages.items())]
    screen.close(f"kvemb report {path}", lines, {"out": made.out, "damages": made.damages})
    if made.damages:
        raise typer.Exit(1)
