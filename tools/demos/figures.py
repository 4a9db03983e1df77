"""The closing figures of the demos: rows by tier, speed, and memory beside the budget."""

from __future__ import annotations

from collections.abc import Sequence

import kvemb
from kvemb.tools.demos.training import Meter
from kvemb.tools.memory import anonymous_bytes
from kvemb.tools.screen import Summary, size

Lines = list[tuple[str, str]]


def tier_figures(variables: Sequence[kvemb.Variable], row_bytes: int) -> tuple[Lines, Summary]:
    """Return lines and summary of the variables' rows by tier. row_bytes: of a row with its slots."""
    stats = [variable.stats for variable in variables]
    rows = sum(variable.size() for variable in variables)
    hot = sum(each.rows_hot for each in stats)
    promotions, written = sum(each.promotions for each in stats), sum(each.cold_writes for each in stats)
    disk = sum(each.bytes_cold for each in stats)
    lines = [
        ("table", f"{rows:,} rows of {row_bytes} bytes with their slots = {size(rows * row_bytes)}"),
        ("hot", f"{hot:,} rows ({hot / max(1, rows):.1%})"),
        ("on disk", f"{size(disk)}; {promotions:,} rows promoted, {written:,} written"),
    ]
    summary = {"rows": rows, "row_bytes": row_bytes, "table_bytes": rows * row_bytes, "rows_hot": hot}
    return lines, {**summary, "disk_bytes": disk, "promotions": promotions, "cold_writes": written}


def speed_figures(meter: Meter) -> tuple[Lines, Summary]:
    """Return lines and summary of the training speed, the first batch separately."""
    lines = [
        ("speed", f"{meter.rows_per_second:,.0f} rows/s looked up and updated, in {meter.seconds:.1f} s"),
        ("first batch", f"{meter.first_seconds:.1f} s (compiles kernels in the first run)"),
        ("hit rate", f"{meter.hit_rate:.3f}"),
    ]
    summary: Summary = {"rows_per_second": round(meter.rows_per_second), "seconds": round(meter.seconds, 2)}
    return lines, {**summary, "first_batch_seconds": round(meter.first_seconds, 2), "hit_rate": meter.hit_rate}


def memory_figures(before: int, budget: int, table: int) -> tuple[Lines, Summary]:
    """Return lines and summary that compare anonymous memory, the store's budget and the table's size; all in bytes.

    before: the anonymous memory just before the store was opened. Pages of mapped files belong to the page cache.
    """
    used = anonymous_bytes()
    above = used - before
    since = f"{size(above)} since, with numba and RocksDB"
    lines = [
        ("memory budget", f"{size(budget)}; the table is {table / budget:.1f} times that"),
        ("memory in use", f"{size(used)}; {size(before)} before the store was opened, {since}"),
    ]
    return lines, {"budget_bytes": budget, "anonymous_bytes": used, "before_bytes": before, "above_bytes": above}
