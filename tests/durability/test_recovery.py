"""The log's entries: their effect on the cold store, and which are damage."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of
from manifests import entry_of, log_entry, manifest_of, segment

from kvemb.backends.memory_store import MemoryStore
from kvemb.checks.ranges import MAX_STEPS
from kvemb.durability.recovery import Recovery, checked, replay
from kvemb.errors import Corruption
from kvemb.journal.segment_files import CLEARED, COUNTED, NUMBER, REMOVED, ROWS, LogEntry, counted
from kvemb.memory.memtables import MemtableMemory
from kvemb.rows.codec import order_keys, pack_rows, unordered_keys


class Place:
    """A database of two variables, `users` with the rows 1 and 2, and what is recorded of its changes."""

    def __init__(self):
        self.stores = {name: MemoryStore(SCHEMA) for name in ("users", "items")}
        self.stores["users"].write(rows_of([1, 2], 1.0))
        self.current = manifest_of(variables={"users": entry_of(rows=2, step=5), "items": entry_of()})
        self.recorded, self.attached = [], []

    def attach(self, name, schema):
        assert schema == SCHEMA
        self.attached.append(name)
        return self.stores[name]

    def record(self, name, keys):
        self.recorded.append((name, unordered_keys(keys, SCHEMA).tolist()))

    def record_cleared(self, name):
        self.recorded.append((name, "cleared"))

    def replay(self, *entries):
        return replay(entries, self.current, self, self, MemtableMemory(1 << 20))

    def rows(self, name):
        return {key: value for block in self.stores[name].scan(9) for key, value in values_of(block).items()}


def wrote(keys, value, step, name="users"):
    return LogEntry(ROWS, name, len(keys), step, pack_rows(rows_of(keys, value)), 1, 0)


def packed(*keys: int) -> bytes:
    return order_keys(np.array(keys, np.int64), SCHEMA).astype("<u8").tobytes()


def removed(keys, step):
    return LogEntry(REMOVED, "users", len(keys), step, packed(*keys), 1, 0)


def test_new_rows_are_counted_and_old_ones_replaced():
    place = Place()
    variables, rows = place.replay(wrote([2, -3], 4.0, 7), wrote([9], 5.0, 3, "items"), wrote([-3], 6.0, 6))
    assert place.rows("users") == {-3: 6.0, 1: 1.0, 2: 4.0}
    assert place.rows("items") == {9: 5.0}
    assert {name: (entry.rows, entry.step) for name, entry in variables.items()} == {"users": (3, 7), "items": (1, 3)}
    assert rows == 4
    assert place.recorded == [("users", [2, -3]), ("items", [9]), ("users", [-3])]
    assert place.attached == ["users", "items"], "each is opened once"


def test_of_removed_rows_those_that_were_there_are_counted():
    place = Place()
    variables, rows = place.replay(removed([2, -8], 6))
    assert place.rows("users") == {1: 1.0}
    assert (variables["users"].rows, variables["users"].step, rows) == (1, 6, 2)
    assert place.recorded == [("users", [2, -8])]


def test_a_cleared_variable_has_the_rows_that_came_after():
    place = Place()
    variables, rows = place.replay(LogEntry(CLEARED, "users", 0, 6, b"", 1, 0), wrote([4], 2.0, 6))
    assert place.rows("users") == {4: 2.0}
    assert (variables["users"].rows, rows) == (1, 1)
    assert place.recorded == [("users", "cleared"), ("users", [4])]


def test_the_last_count_of_steps_is_kept():
    place = Place()
    variables, rows = place.replay(*(LogEntry(COUNTED, "users", 0, 8, NUMBER.pack(count), 1, 0) for count in (3, 4)))
    users = variables["users"]
    assert (users.optimizer_steps, users.step, users.rows, rows) == (4, 8, 2, 0)
    assert (place.attached, place.recorded) == ([], [])


def test_without_entries_nothing_changes():
    place = Place()
    assert place.replay() == (place.current.variables, 0)
    assert place.attached == []


def test_a_recovery_tells_of_a_log_only_where_rows_came_from_it(tmp_path, caplog):
    Recovery(tmp_path, 0.0, 12_000).log_warning()
    assert f"the store {tmp_path} was not closed" in caplog.text
    assert caplog.text.rstrip().endswith("and 12,000 rows written later, from the log")
    assert "log" not in str(Recovery(tmp_path, 0.0)).removeprefix(f"the store {tmp_path}")


# Entries are checked before they are used.

VARIABLES = {"table": entry_of(), "small": entry_of("int32")}
OUTSIDE = "int32, got 2147483648"


def row(**columns):
    """One row, packed, with some columns changed."""
    rows = rows_of([1])
    for name, value in columns.items():
        getattr(rows, name)[:] = value
    return pack_rows(rows)


def read(tmp_path, *entries):
    return list(checked([segment(tmp_path / "000001.log", *entries)], VARIABLES, begun=True))


def test_what_a_log_may_hold_is_given_as_it_is(tmp_path):
    written = log_entry(row(), rows=1, step=MAX_STEPS - 1)
    small = log_entry(packed(-(2**31), 2**31 - 1), REMOVED, b"small", rows=2, number=2, synced=1)
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
        (log_entry(packed(1), REMOVED, rows=2), "8 bytes for each of 2 rows, got 8 bytes"),
        (log_entry(b"x", CLEARED), "0 bytes for each of 0 rows, got 1 bytes"),
        (log_entry(kind=CLEARED, rows=1), "0 bytes for each of 1 rows, got 0 bytes"),
        (log_entry(packed(2**31), REMOVED, b"small", rows=1), OUTSIDE),
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
