"""The report's section about one variable: its properties, how its rows are distributed, how they changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import Any

from kvemb.tools.diff import Difference
from kvemb.tools.inspect import VariableInfo
from kvemb.tools.reading import kind_name
from kvemb.tools.report.axes import Log, Time
from kvemb.tools.report.charts import Part, columns, histogram, scatter
from kvemb.tools.report.history import History
from kvemb.tools.report.markup import card, cards, facts, heading, notice, table
from kvemb.tools.report.projection import Projection
from kvemb.tools.report.series_section import CHURN_NOTE, churn, rows_of
from kvemb.tools.report.spreads import SAMPLE, Spread
from kvemb.tools.screen import counted, size
from kvemb.tools.table_stats import TableStats

# How many numbers of a list, such as an initializer's row, are shown.
SHOWN_NUMBERS = 4


@dataclass
class VariableData:
    """All data about a variable. stats: None if its rows cannot be read; damage: the reason.

    changes: as History.changes returns.
    """

    info: VariableInfo
    stats: TableStats | None = None
    damage: str = ""
    changes: list[Difference | None] = field(default_factory=list)


def variable(found: VariableData, history: History, anchor: str) -> str:
    """Return the section as HTML."""
    parts = [heading(found.info.name, anchor), facts(_facts(found))]
    if found.damage:
        parts.append(notice("Its rows cannot be read:", found.damage))
    if bad := not_finite(found):
        keys = ", ".join(map(str, found.stats.not_finite_keys)) if found.stats else ""
        parts.append(notice("Not finite:", f"{bad}. The first keys: {keys}."))
    left_out: list[str] = []
    content = _past(found, history, left_out) if len(history.checkpoints) > 1 else []
    if found.stats is not None:
        content += _distributions(found.stats, found.info.described, left_out)
    last = found.changes[-1] if found.changes else None
    content += _moved(last, found.info.described["dim"]) if last is not None and last.moved else []
    if found.stats is not None:
        content += _projection(found.stats.projection, found.info.described["dim"], left_out)
    parts.append(cards(content))
    parts += [f'<p class="sub small">Left out: {escape("; ".join(left_out))}.</p>'] if left_out else []
    return "".join(parts)


def not_finite(found: VariableData) -> str:
    """Return how many rows hold NaN or infinity, in words; "" if none does."""
    if found.stats is None:
        return ""
    counts = (
        (found.stats.nan, "NaN"),
        (found.stats.infinite, "infinity"),
        (found.stats.slots, "either in their optimizer slots"),
    )
    lines = [f"{count:,} {'row holds' if count == 1 else 'rows hold'} {what}" for count, what in counts if count]
    return "; ".join(lines)


def shape(described: dict[str, Any]) -> str:
    """Return dim and dtype of a row in words."""
    return f"{described['dim']} x {described['value_dtype']}"


def properties(described: dict[str, Any] | None) -> str:
    """Return an optimizer, a policy or an initializer with its numbers, in words."""

    def formatted(value: Any) -> str:
        if isinstance(value, list):
            return " ".join(f"{each:g}" for each in value[:SHOWN_NUMBERS]) + (
                f" ... ({len(value)})" if value[SHOWN_NUMBERS:] else ""
            )
        return f"{value:g}" if isinstance(value, float) else str(value)

    rest = [
        f"{name.replace('_', ' ')} {formatted(value)}"
        for name, value in (described or {}).items()
        if name not in ("kind", "name") and value is not None
    ]
    return ", ".join([kind_name(described), *rest])


def _facts(found: VariableData) -> list[tuple[str, str]]:
    described = found.info.described
    lines = [
        ("rows", f"{found.info.rows:,}"),
        ("values", f"{shape(described)}, keys {described['key_dtype']}"),
        ("a row with its slots", f"{size(found.info.row_bytes)}; all {size(found.info.row_bytes * found.info.rows)}"),
        ("uses recorded by", f"{described['recording_calls']:,} calls"),
        ("optimizer", properties(described["optimizer"])),
        ("policy", properties(described["policy"])),
        ("initializer", properties(described["initializer"])),
    ]
    if found.stats is not None:
        lines.append(("rows as initialized", _part(found.stats.dead, found.info.rows)))
        lines.append(("rows equal to another", _part(found.stats.duplicates, found.info.rows)))
    return lines


def _part(count: int, rows: int) -> str:
    share = count / max(1, rows)
    return f"{count:,} ({share:.1%})" if share >= 0.001 else f"{count:,} (below 0.1%)" if count else "none"


def _past(found: VariableData, history: History, left_out: list[str]) -> list[str]:
    """Return cards of rows and churn over the series."""
    content = []
    counts = set(history.rows(found.info.name))
    if len(counts) > 1:
        content.append(card("Rows over time", *rows_of(history, found.info.name)))
    else:
        left_out.append("rows over time (the same number in each checkpoint)")
    if any(each.added or each.changed or each.removed for each in found.changes if each):
        content.append(card("Rows that changed", churn(history, [found.changes]), CHURN_NOTE))
    else:
        left_out.append("rows that changed (none)")
    return content


def _distributions(stats: TableStats, described: dict[str, Any], left_out: list[str]) -> list[str]:
    """Return cards of norms, scores and ages. Distributions without content are named in left_out."""
    title = "Norms" if described["dim"] > 1 else "Values"
    found = [_distribution(title, stats.sizes, "", left_out)]
    if stats.scores is None:
        left_out.append("scores (no policy)")
    else:
        found.append(_distribution(*_scored(described["policy"], stats.scores), left_out))
    if stats.ages is None:
        left_out.append("ages (no calls recorded uses)")
    else:
        found.append(_distribution("Ages", stats.ages, "Steps since a row last changed.", left_out))
    return [each for each in found if each]


def _scored(policy: dict[str, Any], scores: Spread) -> tuple[str, Spread, str]:
    if policy["kind"] == "timestamp":
        when = "." if policy["clock"] == "seconds" else ", in steps."
        return "Last uses", scores, f"When a row was last used{when}"
    if policy["kind"] == "frequency" and policy["half_life"] is None:
        return "Uses", scores, "How often a row was used."
    if policy["kind"] == "frequency":
        return "Scores", scores, f"Uses that count half after {policy['half_life']:g} steps, as log2."
    return "Scores", scores, "As the policy computes them; the higher survives."


def _distribution(title: str, found: Spread, note: str, left_out: list[str]) -> str:
    bins = found.bins
    if bins is None:
        left_out.append(f"{title.lower()} (none is finite)")
        return ""
    show = bins.scale.format
    notes = [note] if note else []
    if isinstance(bins.scale, Log):
        notes.append("A log scale.")
    outside = [
        f"{count:,} {where} {show(float(edge))}"
        for count, where, edge in ((bins.under, "below", bins.edges[0]), (bins.over, "above", bins.edges[-1]))
        if count and not (where == "below" and bins.counts_zeros)
    ]
    notes += [f"Outside of the range, in separate bars: {' and '.join(outside)}."] if outside else []
    notes += [f"{found.infinite:,} are infinite and not shown."] if found.infinite else []
    notes += [f"Percentiles are of a sample of {SAMPLE:,} rows."] if found.sampled else []
    least, most = found.percentiles[0][1], found.percentiles[-1][1]
    if least == most:
        return card(title, f"<p>{escape(show(least))} in every row.</p>", " ".join(notes))
    wide = " wide" if isinstance(bins.scale, Time) else ""
    lines = facts([(name, show(value)) for name, value in found.percentiles], f"numbers{wide}")
    return card(title, histogram(title.lower(), bins) + lines, " ".join(notes))


def _moved(last: Difference, dim: int) -> list[str]:
    """Return cards of how far rows moved, and which moved most."""
    counts = last.l2.counts
    upto = ["exactly 0", *(f"up to {most:g}" for most in last.l2.upto[1:-1]), f"more than {last.l2.upto[-2]:g}, or NaN"]
    tips = [f"{each}: {count:,}" for each, count in zip(upto, counts, strict=True)]
    below = [
        (at, f"{most:g}".replace("e-0", "e-") if math.isfinite(most) else "more")
        for at, most in enumerate(last.l2.upto)
    ]
    far = columns("how far rows moved", [Part("rows", "one", counts, tips)], below[::2])
    names, legend = ["key", "l2"], "l2: norm of the difference."
    lines = [[str(row.key), _number(row.l2)] for row in last.most]
    if dim > 1:  # the cosine of single numbers is 1 or -1
        names, legend = [*names, "cosine"], f"{legend} Cosine: between the row before and the row now."
        lines = [[*line, _number(row.cosine)] for line, row in zip(lines, last.most, strict=True)]
    note = (
        f"{counted(last.moved, 'row')}, since the previous checkpoint: norm of the difference relative to that of the "
        "row before; each column up to its label."
    )
    return [
        card("How far rows moved", far, note),
        card("Moved most since the previous checkpoint", table(names, lines, "most"), legend),
    ]


def _number(value: float) -> str:
    return (
        f"{value:.4g}" if math.isfinite(value) else f'<span class="bad">{"NaN" if math.isnan(value) else value}</span>'
    )


def _projection(found: Projection | None, dim: int, left_out: list[str]) -> list[str]:
    if found is None:
        left_out.append(f"a projection ({'one column only' if dim == 1 else 'too few rows differ'})")
        return []
    names = [
        f"key {key}" + (f", score {score:g}" if found.by_score else "")
        for key, score in zip(found.keys, found.scores, strict=True)
    ]
    points = [
        (float(x), float(y), float(weight), name)
        for (x, y), weight, name in zip(found.points, found.weights, names, strict=True)
    ]
    which = (
        f"The {len(points)} rows with the highest scores; a larger dot is a higher score."
        if found.by_score
        else f"{len(points)} random rows."
    )
    note = f"{which} Rows scaled to norm 1; the first two principal components hold {found.share:.0%} of the variance."
    return [card("Rows in two dimensions", scatter("rows in two dimensions", points), note)]
