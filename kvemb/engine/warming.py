"""Warm starts: rows that were hot at a durable point are made hot again when their variable is opened.

Each variable fills only its share of the memory, so the order in which variables are opened does not matter.
"""

from __future__ import annotations

from kvemb.contracts import HOST
from kvemb.engine.engine import Engine
from kvemb.operations.table_operations import TableOperations
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import unordered_keys
from kvemb.tiers.hot_tables import HotTables

# Cells per row, if the budget allows, so that nearly all rows find a cell.
_ROOM = 8 / 7
# The share of the memory that is left for what each variable begins with.
_LEFT = 1 / 32


def warm(engine: Engine, name: str, hot_tables: HotTables, operations: TableOperations) -> None:
    """Load the rows of a variable that were hot, as many as fit in memory if all variables do so."""
    if rows := _hot_rows(engine).get(name, 0):
        hot_tables.memory.make_room(int(rows * min(_ROOM, _part(engine))))
    with hot_tables.memory.not_growing():
        for ordered in engine.hot_keys(name):
            operations.warm(unordered_keys(ordered, hot_tables.schema))


def _part(engine: Engine) -> float:
    """Return the share, at most 1, of the formerly hot rows for which there is memory."""
    budgets, stored = engine.budgets, engine.opened_manifest.variables
    own = sum(budgets.staging.reserve_bytes(entry.schema, engine.limits) for entry in stored.values())
    needed = sum(rows * (RowBlock.bytes_per_row(stored[name].schema) + 1) for name, rows in _hot_rows(engine).items())
    return max(0, budgets.for_cells(HOST) * (1 - _LEFT) - own) / max(1, needed)


def _hot_rows(engine: Engine) -> dict[str, int]:
    """Return how many rows of each variable were hot. Variables may have been dropped since they were counted."""
    return {name: rows for name, rows in engine.hot_rows.items() if name in engine.opened_manifest.variables}
