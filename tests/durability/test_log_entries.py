"""Entries of the log are checked against their variable's schema before they are used."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of
from manifests import entry_of, log_entry, segment

from kvemb.checks.ranges import MAX_STEPS
from kvemb.durability.journal_segments import CLEARED, COUNTED, NUMBER, REMOVED, ROWS, counted
from kvemb.durability.log_entries import checked
from kvemb.errors import Corruption
from kvemb.rows.codec import order_keys, pack_rows

VARIABLES = {"table": entry_of(), "small": entry_of("int32")}
OUTSIDE = "int32, got 2147483648"


def row(**columns):
    """One row, packed, with some columns changed."""
    rows = rows_of([1])
    for name, value in columns.items():
        getattr(rows, name)[:] = value
    return pack_rows(rows)


def removed(*keys: int) -> bytes:
    return order_keys(np.array(keys, np.int64), SCHEMA).astype("<u8").tobytes()


def read(tmp_path, *entries):
    return list(checked([segment(tmp_path / "000001.log", *entries)], VARIABLES, begun=True))


def test_what_a_log_may_hold_is_given_as_it_is(tmp_path):
    written = log_entry(row(), rows=1, step=MAX_STEPS - 1)
    small = log_entry(removed(-(2**31), 2**31 - 1), REMOVED, b"small", rows=2, number=2, synced=1)
    cleared = log_entry(kind=CLEARED, number=3)
    counts = log_entry(NUMBER.pack(MAX_STEPS - 1), COUNTED, number=4)
    entries = read(tmp_path, written, small, cleared, counts)
    assert counted(entries.pop()) == MAX_STEPS - 1
    assert [(entry.kind, entry.variable, entry.rows) for entry in entries] == [
        (ROWS, "table", 1), (REMOVED, "small", 2), (CLEARED, "table", 0),
    ]  # fmt: skip
    assert entries[0].payload == row()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (log_entry(name=b"other"), "holds writes of 'other', which the store does not have"),
        (log_entry(name=b"\xff"), "which the store does not have"),
        (log_entry(step=-1), r"step from 0 to 2\*\*62 - 1, got -1"),
        (log_entry(step=MAX_STEPS), f"got {MAX_STEPS}"),
        (log_entry(synced=1), "come after the last synced entry, which it says is 1"),
        (log_entry(row(), rows=2), "bytes for each of 2 rows, got 33 bytes"),
        (log_entry(row()[:-1], rows=1), "bytes for each of 1 rows, got 32 bytes"),
        (log_entry(removed(1), REMOVED, rows=2), "8 bytes for each of 2 rows, got 8 bytes"),
        (log_entry(b"x", CLEARED), "0 bytes for each of 0 rows, got 1 bytes"),
        (log_entry(kind=CLEARED, rows=1), "0 bytes for each of 1 rows, got 0 bytes"),
        (log_entry(removed(2**31), REMOVED, b"small", rows=1), OUTSIDE),
        (log_entry(row(keys=2**31), name=b"small", rows=1), OUTSIDE),
        (log_entry(row(scores=np.nan), rows=1), "numbers for scores, got NaN"),
        (log_entry(row(steps=-1), rows=1), "steps of rows from 0 to .*, got -1"),
        (log_entry(row(steps=MAX_STEPS), rows=1), f"steps of rows from 0 to .*, got {MAX_STEPS}"),
        (log_entry(row(flags=16), rows=1), "no flags, got 16"),
        (log_entry(NUMBER.pack(0), COUNTED), "a count of steps from 1 to .*"),
        (log_entry(NUMBER.pack(MAX_STEPS), COUNTED), "a count of steps from 1 to .*"),
        (log_entry(NUMBER.pack(1), COUNTED, rows=1), "a count of steps from 1 to .*"),
        (log_entry(b"1234567", COUNTED), "a count of steps from 1 to .*"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_cannot_be_is_damage_by_its_number(tmp_path, entry, message):
    with pytest.raises(Corruption, match=rf"{tmp_path} is damaged: entry 1 of the log .*{message}; restore"):
        read(tmp_path, entry)


def test_entries_before_a_damaged_one_are_given(tmp_path):
    entries = checked(
        [segment(tmp_path / "000001.log", log_entry(), log_entry(number=2, step=-1))], VARIABLES, begun=True
    )
    assert next(entries).number == 1
    with pytest.raises(Corruption, match="entry 2 of the log"):
        next(entries)
