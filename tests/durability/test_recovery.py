"""The effect of the log's entries on the cold store: rows, counts, steps and recorded changes."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of
from manifests import entry_of, manifest_of

from kvemb.backends.memory import MemoryStore
from kvemb.durability.journal_segments import CLEARED, COUNTED, NUMBER, REMOVED, ROWS, LogEntry
from kvemb.durability.recovery import Recovery, replay
from kvemb.errors import Corruption
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
        return replay(entries, self.current, self, self)

    def rows(self, name):
        return {key: value for block in self.stores[name].scan(9) for key, value in values_of(block).items()}


def wrote(keys, value, step, name="users"):
    return LogEntry(ROWS, name, len(keys), step, pack_rows(rows_of(keys, value)), 1, 0)


def removed(keys, step):
    payload = order_keys(np.array(keys, np.int64), SCHEMA).astype("<u8").tobytes()
    return LogEntry(REMOVED, "users", len(keys), step, payload, 1, 0)


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


def test_a_variable_that_the_store_lacks_is_damage():
    with pytest.raises(Corruption, match="writes of 'others', which the store does not have"):
        Place().replay(wrote([1], 1.0, 1, "others"))


def test_a_recovery_tells_of_a_log_only_where_rows_came_from_it(tmp_path, caplog):
    Recovery(tmp_path, 0.0, 12_000).log_warning()
    assert f"the store {tmp_path} was not closed" in caplog.text
    assert caplog.text.rstrip().endswith("and 12,000 rows written later, from the log")
    assert "log" not in str(Recovery(tmp_path, 0.0)).removeprefix(f"the store {tmp_path}")
