"""What demos tell of their tables at the end: rows by tier."""

from __future__ import annotations

from collections.abc import Iterable

import kvemb
from kvemb.tools.screen import Summary, size

Lines = list[tuple[str, str]]
# The explanation for the duration of the first batch in the first run on a machine.
FIRST_NOTE = "compiling kernels, once"


def stats_of(variables: Iterable[kvemb.Variable]) -> kvemb.Stats:
    """Return the counts of all together."""
    return sum((variable.stats for variable in variables), kvemb.Stats())


def tier_figures(stats: kvemb.Stats, row_bytes: int) -> tuple[Lines, Summary]:
    """Return lines and summary of rows by tier. row_bytes: of a row with its slots."""
    rows, hot, nbytes = stats.rows, stats.rows_hot, stats.rows * row_bytes
    lines = [
        ("table", f"{rows:,} rows of {row_bytes} bytes with their slots = {size(nbytes)}"),
        ("hot", f"{hot:,} rows ({hot / max(1, rows):.1%})"),
        ("on disk", f"{size(stats.bytes_cold)}; {stats.promotions:,} rows promoted, {stats.cold_writes:,} written"),
    ]
    summary: Summary = {"rows": rows, "row_bytes": row_bytes, "table_bytes": nbytes, "rows_hot": hot}
    summary |= {"disk_bytes": stats.bytes_cold, "promotions": stats.promotions, "cold_writes": stats.cold_writes}
    return lines, summary
