"""Recovery: the writes in the log after the last durable point are replayed into the cold store, and reported.

Without a log there is nothing to do: opening always starts from the last durable point (kvemb.durability.points).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvemb.contracts import ColdDatabase, ColdStore
from kvemb.durability import journal_segments
from kvemb.durability.changes import ChangeLog
from kvemb.durability.journal_segments import LogEntry
from kvemb.durability.manifest import Manifest
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import Corruption
from kvemb.options import format_count, format_time
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import order_keys, unordered_keys, unpack_rows
from kvemb.rows.schema import Schema

_logger = logging.getLogger("kvemb")


@dataclass(frozen=True)
class Recovery:
    """Say what a store recovered when it was opened after a crash.

    Attributes:
        path: The store's directory.
        created: When the snapshot of the durable point was taken, in seconds since 1970.
        rows: Row writes and removals that were replayed from the log.
    """

    path: Path
    created: float
    rows: int = 0

    def __str__(self) -> str:
        when = format_time(self.created)
        added = f" and {format_count(self.rows, 'row')} written later, from the log" if self.rows else ""
        return f"the store {self.path} was not closed; recovered: its durable point of {when}{added}"

    def log_warning(self) -> None:
        """Log it as a warning."""
        _logger.warning("%s", self)


def replay(
    entries: Iterable[LogEntry], current: Manifest, database: ColdDatabase, changes: ChangeLog
) -> tuple[dict[str, VariableEntry], int]:
    """Write the log's entries to the cold database.

    Returns the updated variables and the number of rows written or removed. Raises Corruption, ColdStoreError.
    """
    variables, rows = dict(current.variables), 0
    stores: dict[str, ColdStore] = {}
    for entry in entries:
        if entry.variable not in variables:
            raise Corruption(f"the log has writes of {entry.variable!r}, which the store does not have")
        described = variables[entry.variable]
        described = replace(described, step=max(described.step, entry.step))
        if entry.kind == journal_segments.COUNTED:
            variables[entry.variable] = replace(described, optimizer_steps=journal_segments.counted(entry))
            continue
        if entry.variable not in stores:
            stores[entry.variable] = database.attach(entry.variable, described.schema)
        cold = stores[entry.variable]
        if entry.kind == journal_segments.CLEARED:
            cold.clear()
            changes.record_cleared(entry.variable)
            size = 0
        else:
            block = _block(entry, described.schema)
            changes.record(entry.variable, order_keys(block.keys, described.schema))
            size = described.rows + _write(cold, block, removed=entry.kind == journal_segments.REMOVED)
        variables[entry.variable] = replace(described, rows=size)
        rows += entry.rows
    return variables, rows


def _block(entry: LogEntry, schema: Schema) -> RowBlock:
    if entry.kind == journal_segments.ROWS:
        return unpack_rows(entry.payload, entry.rows, schema)
    removals = RowBlock(schema, entry.rows)
    removals.keys[:] = unordered_keys(np.frombuffer(entry.payload, "<u8").astype(np.uint64), schema)
    removals.flags[:] = REMOVED
    return removals


def _write(cold: ColdStore, block: RowBlock, *, removed: bool) -> int:
    """Write or remove rows; returns the change of the number of rows."""
    _, existed = cold.read(block.keys)
    cold.write(block)
    existing = int(np.sum(existed))
    return -existing if removed else len(block) - existing
