"""How much of the store's budget a variable takes, and the hot tables made with it."""

from __future__ import annotations

from kvemb import registry
from kvemb.checks.numeric import as_int
from kvemb.contracts import HotTable
from kvemb.limits import Limits
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema
from kvemb.tiers.budget import Budget

# Two piles that wait to be written, two reads ahead of half a pile each, and a pile of a snapshot's copies.
_SPILL_BLOCKS = 4


def make_tables(
    variable: str,
    schema: Schema,
    devices: tuple[str, ...],
    init_size: int,
    hot_rows: int | None,
    budget: Budget,
    limits: Limits,
) -> tuple[list[HotTable], int]:
    """Reserve memory for a variable and make its hot tables, one a device.

    Returns them with the rows of one spill pile. hot_rows: cells in all, reserved at once; None: init_size rows at
    first (0: a default), and as many doublings as the budget may ever allow. Raises ValueError when the budget does
    not hold what was asked for.
    """
    kinds = [registry.hot_table(device) for device in devices]
    bucket_bytes = [kind.cells_per_bucket * kind.bytes_per_cell(schema) for kind in kinds]
    spill_row_bytes = _SPILL_BLOCKS * RowBlock.bytes_per_row(schema)
    share = budget.free // 16
    spill_rows = max(limits.min_spill_rows, min(limits.max_spill_rows, share // spill_row_bytes))
    if hot_rows is not None:
        what, wanted = "hot_rows of ", -(-as_int(hot_rows, "hot_rows", 1) // len(devices))
        first = most = [_buckets(wanted, kind) for kind in kinds]
    else:
        what, wanted = "init_size of ", -(-(init_size or limits.init_rows) // len(devices))
        free = max(0, budget.free - spill_rows * spill_row_bytes) // len(devices)
        if not init_size:
            dearest = max(kind.bytes_per_cell(schema) for kind in kinds)
            what, wanted = "", min(wanted, free // (32 * dearest))
        first = [_buckets(wanted, kind) for kind in kinds]
        for_growth = max(0, free - budget.kept_from_growth // len(devices))
        most = [max(least, for_growth // nbytes) for least, nbytes in zip(first, bucket_bytes, strict=True)]
        first = [_halved(limit, least) for limit, least in zip(most, first, strict=True)]
    needed = sum(count * nbytes for count, nbytes in zip(first, bucket_bytes, strict=True))
    budget.reserve(needed + spill_rows * spill_row_bytes, f"{what}variable {variable!r}")
    tables = [
        kind(schema, start * kind.cells_per_bucket, limit * kind.cells_per_bucket)
        for kind, start, limit in zip(kinds, first, most, strict=True)
    ]
    return tables, spill_rows


def release(schema: Schema, hot_bytes: int, spill_rows: int, budget: Budget) -> None:
    """Give back what a variable took, make_tables and growth together."""
    budget.give_back(hot_bytes + spill_rows * _SPILL_BLOCKS * RowBlock.bytes_per_row(schema))


def _buckets(rows: int, kind: type[HotTable]) -> int:
    """Buckets of one device's table that hold rows."""
    return max(1, -(-rows // kind.cells_per_bucket))


def _halved(limit: int, least: int) -> int:
    """The smallest limit / 2^k of at least `least` buckets: doubling from there ends at the limit, not short of it."""
    while limit >= 2 * least:
        limit //= 2
    return limit
