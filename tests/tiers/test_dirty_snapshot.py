"""A snapshot of dirty rows: as they were at its instant, whatever becomes of them before they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blocks import SCHEMA, Now, hot_tables_of, rows_of, values_of

from kvemb.errors import ColdStoreError
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.codec import order_keys
from kvemb.store_state import StoreState
from kvemb.tiers.access import TableAccess
from kvemb.tiers.dirty_snapshot import DirtySnapshot


class File:
    """contracts.SortedFile in memory."""

    path = Path("memory")

    def __init__(self):
        self.blocks, self.finished = [], False

    def append(self, rows):
        assert (np.diff(rows.keys) > 0).all()
        self.blocks.append(rows.select(slice(None)))

    def finish(self):
        self.finished = True


class Taken:
    """A snapshot of the rows 0 to 9, all dirty but row 9. ingested: what the cold store in use was given."""

    def __init__(self, room_rows=100, file_rows=100, tables=1):
        self.hot, self.access = hot_tables_of(64, tables), TableAccess(StoreState("test"))
        owners = self.hot.owners(np.arange(9))
        list(self.hot.insert(rows_of(range(9), 1.0, flags=DIRTY), owners))
        list(self.hot.insert(rows_of([9]), self.hot.owners(np.array([9]))))
        self.written, self.ingested = [], {}
        self.snapshot = DirtySnapshot(
            SCHEMA, self.hot, self.access, Now(), lambda keys: self.written.extend(keys.tolist()), room_rows,
            file_rows * RowBlock.bytes_per_row(SCHEMA),
        )  # fmt: skip
        with self.access.held():
            self.snapshot.begin()

    def change(self, keys, value=2.0):
        keys = np.array(keys)
        owners = self.hot.owners(keys)
        with self.access.held():
            self.snapshot.copy_before_change(keys, None, owners)
            cells = self.hot.find(keys, owners)
            self.hot.assign(cells, owners, np.full((len(keys), 2), value, np.float32), 1)

    def write(self):
        """Yield files as they come."""
        return self.snapshot.write(File, lambda file: self.ingested.update(rows_in([file])))

    def flags(self, keys):
        keys = np.array(keys)
        owners = self.hot.owners(keys)
        return [rows.flags.tolist() for rows in self.hot.read(self.hot.find(keys, owners), owners)]


def rows_in(files):
    """The rows of files by key; none is there twice."""
    rows = {}
    for file in files:
        assert file.finished
        for block in file.blocks:
            assert not rows.keys() & set(block.keys.tolist())
            rows |= values_of(block)
    return rows


@pytest.mark.parametrize("tables", [1, 3])
def test_dirty_rows_are_written_and_clean_after(tables):
    taken = Taken(tables=tables)
    assert taken.snapshot.keys().tolist() == order_keys(np.arange(9), SCHEMA).tolist()
    assert rows_in(taken.write()) == dict.fromkeys(range(9), 1.0)
    assert taken.ingested == dict.fromkeys(range(9), 1.0)
    assert sorted(taken.written) == list(range(9))
    assert not any(map(any, taken.flags(range(10))))


def test_rows_that_change_before_their_turn_are_written_as_they_were_and_stay_dirty():
    taken = Taken()
    taken.change([3, 9])
    assert rows_in(taken.write()) == dict.fromkeys(range(9), 1.0)
    assert 3 not in taken.ingested, "the cold store in use has a newer row to come"
    assert taken.flags([3, 9]) == [[DIRTY, DIRTY]]


def test_rows_that_change_while_their_file_is_written_stay_dirty():
    taken = Taken(room_rows=4, file_rows=2)
    files = taken.write()
    first = next(files)
    taken.change([0])
    rest = list(files)
    assert rows_in([first, *rest]) == dict.fromkeys(range(9), 1.0)
    assert len(rest) >= 4, "a few rows at a time where the buffer does not hold all"
    assert taken.flags([0]) == [[DIRTY]]


def test_rows_that_leave_are_copied_and_lose_their_marks():
    taken = Taken()
    leaving = rows_of([5, 6], 1.0, flags=DIRTY | PENDING)
    leaving.flags[1] = DIRTY | WRITING
    with taken.access.held():
        taken.hot.remove(leaving.keys, None)
        taken.snapshot.copy_before_leaving(leaving)
    assert leaving.flags.tolist() == [DIRTY, DIRTY]
    written = rows_in(taken.write())
    assert written.keys() == {0, 1, 2, 3, 4, 5, 7, 8}


def test_callers_wait_when_the_buffer_is_full_and_go_on_when_it_is_written():
    taken = Taken(room_rows=4, file_rows=2)
    taken.change([5, 6, 7, 8])
    assert not taken.access._room.is_set()
    files = list(taken.write())
    assert taken.access._room.is_set()
    assert rows_in(files) == dict.fromkeys(range(9), 1.0)


def test_a_snapshot_that_ends_unwritten_leaves_no_marks():
    taken = Taken()
    taken.change([1])
    with taken.access.held():
        taken.snapshot.end()
    assert taken.flags(range(9)) == [[DIRTY] * 9]
    assert taken.access._no_snapshot.is_set()


def test_a_row_that_could_not_be_kept_fails_the_snapshot(monkeypatch):
    taken = Taken()

    def short(rows):
        raise MemoryError("short")

    with monkeypatch.context() as patch:
        patch.setattr(taken.snapshot, "_buffer", short)
        with pytest.raises(MemoryError):
            taken.change([1])
    with pytest.raises(ColdStoreError, match="could not be kept for the checkpoint"):
        list(taken.write())


def test_what_was_read_before_a_row_was_written_is_forgotten_though_its_marks_stay(monkeypatch):
    taken = Taken()

    def short(cells):
        raise MemoryError("short")

    monkeypatch.setattr(taken.hot.tables[0], "mark_written", short)
    with pytest.raises(MemoryError):
        list(taken.write())
    assert sorted(taken.written) == list(range(9))
