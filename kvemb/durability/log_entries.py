"""Validation of log entries (FORMAT.md, "Log") against their variables' schemas, before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvemb.checks.brief import brief
from kvemb.checks.ranges import MAX_STEPS
from kvemb.durability.journal_segments import CLEARED, COUNTED, NUMBER, REMOVED, ROWS, LogEntry, counted, read
from kvemb.durability.variable_entry import VariableEntry
from kvemb.errors import Corruption
from kvemb.rows.codec import KEY_BYTES, record_dtype, unordered_keys
from kvemb.rows.schema import Schema


def checked(segments: list[Path], variables: Mapping[str, VariableEntry], *, begun: bool) -> Iterator[LogEntry]:
    """Yield the valid entries of consecutive segments (journal_segments.read). variables: of the durable point before.

    Raises Corruption for an invalid entry, naming the log's directory and the entry's number.
    """
    for entry in read(segments, begun=begun):
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
    if entry.kind == COUNTED:
        if entry.rows or len(entry.payload) != NUMBER.size or not 0 < counted(entry) < MAX_STEPS:
            raise ValueError("must have a count of steps from 1 to 2**62 - 1")
        return
    schema = variables[entry.variable].schema
    records = record_dtype(schema)
    width = {
        ROWS: KEY_BYTES + records.itemsize,
        REMOVED: KEY_BYTES,
        CLEARED: 0,
    }[entry.kind]
    if len(entry.payload) != entry.rows * width or (entry.kind == CLEARED and entry.rows):
        raise ValueError(
            f"must have a payload of {width:,} bytes for each of {entry.rows:,} rows, got {len(entry.payload):,} bytes"
        )
    if entry.kind != CLEARED:
        order = ">u8" if entry.kind == ROWS else "<u8"
        _check_keys(np.frombuffer(entry.payload, order, entry.rows).astype(np.uint64), schema)
    if entry.kind == ROWS:
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
