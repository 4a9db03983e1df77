"""Recovery: the writes in the log after the last durable point are checked, replayed into the cold store, and reported.

Without a log there is nothing to do: opening always starts from the last durable point (kvemb.durability.points).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.ranges import MAX_STEPS
from kvemb.contracts import ColdDatabase
from kvemb.durability.buffered_store import BufferedStore
from kvemb.durability.changes import ChangeLog
from kvemb.durability.manifest import Manifest
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import Corruption
from kvemb.journal import segment_files as log
from kvemb.journal.segment_files import LogEntry
from kvemb.limits import DEFAULT, Limits
from kvemb.memory.memtables import MemtableMemory
from kvemb.options import format_count, format_time
from kvemb.rows.block import REMOVED, RowBlock
from kvemb.rows.codec import KEY_BYTES, order_keys, record_dtype, unordered_keys, unpack_rows
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


def checked(segments: list[Path], variables: Mapping[str, VariableEntry], *, begun: bool) -> Iterator[LogEntry]:
    """Yield the checked entries of consecutive segments of the log. variables: of the durable point before.

    Raises Corruption for an invalid entry, naming the log's directory and the entry's number.
    """
    for entry in log.read(segments, begun=begun):
        try:
            _check(entry, variables)
        except ValueError as error:
            raise Corruption(
                f"{segments[0].parent} is damaged: entry {entry.number:,} of the log {error}; "
                "restore from a checkpoint, or run kvemb repair"
            ) from error
        yield entry


def _check(entry: LogEntry, variables: Mapping[str, VariableEntry]) -> None:
    """Raise ValueError, saying what is wrong with an entry."""
    if entry.variable not in variables:
        raise ValueError(f"holds writes of {brief(entry.variable)}, which the store does not have")
    if not 0 <= entry.step < MAX_STEPS:
        raise ValueError(f"must have a step from 0 to 2**62 - 1, got {entry.step}")
    if not entry.synced < entry.number:
        raise ValueError(f"must come after the last synced entry, which it says is {entry.synced:,}")
    if entry.kind == log.COUNTED:
        if entry.rows or len(entry.payload) != log.NUMBER.size or not 0 < log.counted(entry) < MAX_STEPS:
            raise ValueError("must have a count of steps from 1 to 2**62 - 1")
        return
    schema = variables[entry.variable].schema
    records = record_dtype(schema)
    width = {log.ROWS: KEY_BYTES + records.itemsize, log.REMOVED: KEY_BYTES, log.CLEARED: 0}[entry.kind]
    if len(entry.payload) != entry.rows * width or (entry.kind == log.CLEARED and entry.rows):
        raise ValueError(
            f"must have a payload of {width:,} bytes for each of {entry.rows:,} rows, got {len(entry.payload):,} bytes"
        )
    if entry.kind != log.CLEARED:
        order = ">u8" if entry.kind == log.ROWS else "<u8"
        _check_keys(np.frombuffer(entry.payload, order, entry.rows).astype(np.uint64), schema)
    if entry.kind == log.ROWS:
        _check_records(np.frombuffer(entry.payload, records, entry.rows, KEY_BYTES * entry.rows))


def _check_keys(ordered: Any, schema: Schema) -> None:
    keys = unordered_keys(ordered, schema)
    limits = np.iinfo(np.int32)
    if schema.key_dtype == np.int32 and len(wrong := keys[(keys < limits.min) | (keys > limits.max)]):
        raise ValueError(f"must have keys of int32, got {wrong[0]}")


def _check_records(records: Any) -> None:
    if np.isnan(records["score"]).any():
        raise ValueError("must have numbers for scores, got NaN")
    if len(wrong := records["step"][(records["step"] < 0) | (records["step"] >= MAX_STEPS)]):
        raise ValueError(f"must have steps of rows from 0 to 2**62 - 1, got {wrong[0]}")
    if records["flags"].any():
        raise ValueError(f"must have no flags, got {records['flags'].max()}")


def replay(
    entries: Iterable[LogEntry],
    current: Manifest,
    database: ColdDatabase,
    changes: ChangeLog,
    memory: MemtableMemory,
    limits: Limits = DEFAULT,
) -> tuple[dict[str, VariableEntry], int]:
    """Write the log's checked entries to the cold database. memory: for rows until they are in a file.

    Returns the updated variables and the number of rows written or removed. Raises Corruption, ColdStoreError.
    """
    variables, rows = dict(current.variables), 0
    stores: dict[str, BufferedStore] = {}
    with ExitStack() as closing:
        for entry in entries:
            described = variables[entry.variable]
            described = replace(described, step=max(described.step, entry.step))
            if entry.kind == log.COUNTED:
                variables[entry.variable] = replace(described, optimizer_steps=log.counted(entry))
                continue
            if (store := stores.get(entry.variable)) is None:
                cold = database.attach(entry.variable, described.schema)
                store = stores[entry.variable] = BufferedStore(cold, described.schema, memory, limits)
                closing.callback(store.close)
            if entry.kind == log.CLEARED:
                store.clear()
                changes.record_cleared(entry.variable)
                size = 0
            else:
                block = _block(entry, described.schema)
                changes.record(entry.variable, order_keys(block.keys, described.schema))
                size = described.rows + _write(store, block, removed=entry.kind == log.REMOVED)
            variables[entry.variable] = replace(described, rows=size)
            rows += entry.rows
        for store in stores.values():
            store.flush()
    return variables, rows


def _block(entry: LogEntry, schema: Schema) -> RowBlock:
    if entry.kind == log.ROWS:
        return unpack_rows(entry.payload, entry.rows, schema)
    removals = RowBlock(schema, entry.rows)
    removals.keys[:] = unordered_keys(np.frombuffer(entry.payload, "<u8").astype(np.uint64), schema)
    removals.flags[:] = REMOVED
    return removals


def _write(store: BufferedStore, block: RowBlock, *, removed: bool) -> int:
    """Write or remove rows; returns the change of the number of rows."""
    existing = int(np.sum(store.have(block.keys)))
    store.write(block)
    return -existing if removed else len(block) - existing
