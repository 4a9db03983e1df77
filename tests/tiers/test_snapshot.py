"""A snapshot of dirty rows: as they were at its instant, whatever becomes of them before they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blocks import SCHEMA, InFlight, Later, hot_tables_of, rows_of, values_of

from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.memory.memtables import MemtableMemory, Memtables
from kvemb.memory.staging import Staging
from kvemb.rows.block import DIRTY, PENDING, WRITING, RowBlock
from kvemb.rows.codec import order_keys
from kvemb.store_state import StoreState
from kvemb.threads.pool import Here
from kvemb.tiers.access import TableAccess
from kvemb.tiers.snapshot import DirtySnapshot
from tests.histories import small_spill
from tests.tiers.test_storage import put, storage_of


class File:
    """contracts.SortedFile in memory."""

    path = Path("memory")

    def __init__(self):
        self.blocks, self.finished = [], False

    @property
    def rows(self):
        return sum(map(len, self.blocks))

    def append(self, rows):
        assert (np.diff(rows.keys) > 0).all()
        self.blocks.append(rows.select(slice(None)))

    def finish(self):
        self.finished = True


class Taken:
    """A snapshot of the rows 0 to 9, all dirty but row 9. ingested: what the cold store in use was given."""

    def __init__(self, room_rows=100, part_rows=100, file_rows=100, tables=1):
        self.hot, self.access = hot_tables_of(64, tables), TableAccess(StoreState("test"), InFlight())
        owners = self.hot.owners(np.arange(9))
        list(self.hot.insert(rows_of(range(9), 1.0, flags=DIRTY), owners))
        list(self.hot.insert(rows_of([9]), self.hot.owners(np.array([9]))))
        self.written, self.ingested = [], {}
        row_bytes = RowBlock.bytes_per_row(SCHEMA)
        limits = Limits(snapshot_part_bytes=part_rows * row_bytes, table_file_bytes=file_rows * row_bytes)
        self.snapshot = DirtySnapshot(self.hot, self._memtables(), self.access, room_rows, limits)
        with self.access.held():
            self.snapshot.begin()

    def _memtables(self):
        memory, write, failed = MemtableMemory(1 << 20), lambda rows: None, self.access.state.poison
        return Memtables(SCHEMA, memory, 100, Here(), write, self._forget, failed, Limits())

    def _forget(self, keys):
        self.written.extend(keys.tolist())

    def change(self, keys, value=2.0):
        keys = np.array(keys)
        owners = self.hot.owners(keys)
        with self.access.held():
            self.snapshot.copy_before_change(keys, None, owners)
            cells = self.hot.find(keys, owners)
            self.hot.assign(cells, owners, np.full((len(keys), 2), value, np.float32), 1)

    def parts(self):
        """Yield the files that are finished after each part."""
        return self.snapshot.write(File, self.ingest)

    def write(self):
        return [file for files in self.parts() for file in files]

    def ingest(self, file):
        self.ingested |= rows_in([file])

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
    taken = Taken(room_rows=4, part_rows=2, file_rows=4)
    parts = taken.parts()
    assert next(parts) == []
    taken.change([0])
    files = [file for part in parts for file in part]
    assert rows_in(files) == dict.fromkeys(range(9), 1.0)
    assert [file.rows for file in files] == [4, 4, 1], "a few rows at a time where the buffer does not hold all"
    assert taken.flags(range(9)) == [[DIRTY] + [0] * 8]


def test_other_rows_are_written_after_those_that_were_taken_before():
    taken = Taken(room_rows=4, part_rows=2)
    parts = taken.parts()
    assert [next(parts), next(parts)] == [[], []]
    assert not taken.ingested
    taken.snapshot.before_write()
    assert taken.ingested == dict.fromkeys(range(4), 1.0)
    assert taken.flags(range(4)) == [[DIRTY | WRITING] * 4], "the thread that writes does not wait for the lock"
    (first,) = next(parts)
    assert taken.flags(range(4)) == [[0] * 4]
    taken.snapshot.before_write()
    taken.snapshot.before_write()
    rest = [file for part in parts for file in part]
    assert [first.rows, *(file.rows for file in rest)] == [4, 2, 3]
    assert rows_in([first, *rest]) == taken.ingested == dict.fromkeys(range(9), 1.0)


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_exception_of_another_thread_as_rows_are_copied_fails_the_snapshot(monkeypatch, where):
    taken = Taken()
    (table,) = taken.hot.tables
    release = table.release_pending

    def interrupted(cells):
        if where == "after":
            release(cells)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table, "release_pending", interrupted)
        with pytest.raises(KeyboardInterrupt):
            taken.change([3])
    taken.change([4])
    with pytest.raises(ColdStoreError, match=r"could not be copied before it changed: KeyboardInterrupt"):
        taken.write()


@pytest.mark.parametrize("stage", ["append", "finish"])
def test_a_file_that_fails_is_not_ingested_and_fails_the_snapshot(monkeypatch, stage):
    taken = Taken(room_rows=4, part_rows=2)
    parts = taken.parts()
    next(parts)

    def short(*args):
        raise ColdStoreError("too full")

    with monkeypatch.context() as patch:
        patch.setattr(File, stage, short)
        if stage == "append":
            with pytest.raises(ColdStoreError, match="too full"):
                next(parts)
        else:
            taken.snapshot.before_write()
    taken.snapshot.before_write()
    if stage == "finish":
        with pytest.raises(ColdStoreError, match="too full"):
            next(parts)
    assert not taken.ingested
    with taken.access.held():
        taken.snapshot.end()
    assert taken.flags(range(9)) == [[DIRTY] * 9]
    assert taken.access._no_snapshot.is_set()


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
    taken = Taken(room_rows=4, part_rows=2)
    taken.change([5, 6, 7, 8])
    assert not taken.access._room.is_set()
    files = taken.write()
    assert taken.access._room.is_set()
    assert rows_in(files) == dict.fromkeys(range(9), 1.0)


def test_a_row_that_could_not_be_kept_fails_the_snapshot(monkeypatch):
    taken = Taken()

    def short(rows):
        raise MemoryError("short")

    with monkeypatch.context() as patch:
        patch.setattr(taken.snapshot, "_copy", short)
        with pytest.raises(MemoryError):
            taken.change([1])
    with pytest.raises(ColdStoreError, match="could not be copied before it changed"):
        taken.write()


def test_what_was_read_before_a_row_was_written_is_forgotten_though_its_marks_stay(monkeypatch):
    taken = Taken()

    def short(cells):
        raise MemoryError("short")

    monkeypatch.setattr(taken.hot.tables[0], "mark_written", short)
    with pytest.raises(MemoryError):
        taken.write()
    assert sorted(taken.written) == list(range(9))


def test_what_a_snapshot_holds_is_given_back_when_it_ends():
    staging, executor = Staging(1 << 14), Later()
    storage = storage_of(executor=executor, staging=staging, limits=Limits(**{**small_spill(8), "copied_rows": 100}))
    with storage.access.held():
        storage.snapshot.begin()
    assert storage.snapshot.under_way
    assert storage.staged.copies.held == staging.read.total - staging.read.free > 0
    for _ in range(2):
        storage.snapshot.end()
    assert not storage.snapshot.under_way
    assert staging.read.free == staging.read.total


class Meanwhile(Later):
    """Runs what it was given when a result is waited for, after a test's function."""

    def __init__(self):
        super().__init__()
        self.meanwhile = lambda: None

    def submit(self, call, /, *args, **named):
        future = super().submit(call, *args, **named)
        result = future.result

        def waited(timeout=None):
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            meanwhile()
            self.go()
            return result(timeout)

        future.result = waited
        return future


def test_a_row_that_changes_and_leaves_while_an_earlier_write_waits_is_newer_than_the_snapshots():
    """The write of rows that had left before the snapshot took the later memtable with it, and the file came on top."""
    executor = Meanwhile()
    storage = storage_of(executor=executor)
    put(storage, range(20))
    hot = storage.hot_tables.keys()[:1]

    def change() -> None:
        with storage.updating():
            storage.replace(storage.locate(hot), rows_of(hot, 9.0, flags=DIRTY), 1)
        put(storage, range(100, 140), 50.0)
        assert storage.hot_tables.find(hot, None).tolist() == [-1]
        storage.memtables.seal()

    def ingest(file):
        storage.cold.write(RowBlock.joined(file.blocks, SCHEMA))

    with storage.access.held():
        snapshot = storage.snapshot.begin()
    assert len(executor.waiting) == 1
    executor.meanwhile = change
    written = [file for files in snapshot.write(File, ingest) for file in files]
    storage.snapshot.end()
    executor.go()
    assert written
    assert values_of(storage.cold.read(hot)[0]) == {int(hot[0]): 9.0}
