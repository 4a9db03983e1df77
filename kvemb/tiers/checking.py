"""Consistency checks of the tiers of an open variable: one line for each finding.

Rows are streamed, so memory does not grow with the table.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvemb.contracts import ColdStore
from kvemb.rows.block import PENDING, WRITING, RowBlock
from kvemb.rows.codec import order_keys
from kvemb.tiers.hot_tables import HotTables

BATCH_ROWS = 65_536


def order_findings(rows: RowBlock, last: int) -> Iterator[str]:
    """Yield a line for each fault in a batch of a scan. last: the last ordered key before the batch."""
    ordered = order_keys(rows.keys, rows.schema)
    if int(ordered[0]) <= last or (ordered[1:] <= ordered[:-1]).any():
        yield f"keys are not in ascending order near key {rows.keys[0]}"
    if len(strange := np.flatnonzero(np.isnan(rows.scores))):
        yield f"the score of key {rows.keys[strange[0]]} is not a number"
    if len(strange := np.flatnonzero(rows.flags)):
        yield f"the record of key {rows.keys[strange[0]]} has unknown flags"


def tier_findings(hot_tables: HotTables, cold: ColdStore, size: int) -> Iterator[str]:
    """Yield a line for each fault in the tiers of a variable. size: the variable's count of its rows.

    REQUIRES: the variable's lock, no dirty row, and no snapshot in progress.
    """
    for number, table in enumerate(hot_tables.tables):
        cells = table.occupied()
        if table.size != len(cells) or len(cells) > table.capacity_rows:
            cell_count = f"{len(cells):,} of its {table.capacity_rows:,} cells"
            yield f"hot table {number} counts {table.size:,} rows, but {cell_count} are taken"
        for at in range(0, len(cells), BATCH_ROWS):
            rows = table.read(cells[at : at + BATCH_ROWS])
            yield from (f"hot table {number}: {line}" for line in _hot_findings(rows, cold))
            if not np.array_equal(table.find(rows.keys), cells[at : at + BATCH_ROWS]):
                yield f"hot table {number}: a key is in one cell, and a search finds it in another"
            owners = hot_tables.owners(rows.keys)
            if owners is not None and (owners != number).any():
                yield f"hot table {number}: key {rows.keys[owners != number][0]} belongs to another hot table"
    count, last = 0, -1
    for rows in cold.scan(BATCH_ROWS):
        yield from (f"cold rows: {line}" for line in order_findings(rows, last))
        last = int(order_keys(rows.keys, rows.schema)[-1])
        count += len(rows)
    if count != size:
        yield f"the cold store has {count:,} rows, but {size:,} are counted"


def _hot_findings(rows: RowBlock, cold: ColdStore) -> Iterator[str]:
    if (rows.flags & (PENDING | WRITING)).any():
        yield "a cell is marked for a snapshot, but none is in progress"
    order = np.argsort(order_keys(rows.keys, rows.schema))
    rows = rows.select(order)
    there, found = cold.read(rows.keys)
    if not found.all():
        yield f"key {rows.keys[~found][0]} is marked clean, but is not in the cold store"
    rows = rows.select(found)
    same = (rows.words == there.words).all(axis=1) & (rows.steps == there.steps)
    same &= rows.scores.view(np.uint64) == there.scores.view(np.uint64)
    if not same.all():
        yield f"key {rows.keys[~same][0]} is marked clean, but differs from the cold store"
