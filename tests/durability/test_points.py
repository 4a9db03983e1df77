"""Durable points: a store opens at the last one, whatever else is in its directory."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from unittest.mock import Mock

import pytest
from crashes import copy_of_open
from manifests import ID, entry_of

import kvemb
from kvemb.durability import layout, points
from kvemb.durability.checkpoint import complete
from kvemb.durability.lock_file import LockFile
from kvemb.durability.points import Points, reading
from kvemb.errors import ColdStoreError, Corruption, Locked, StoreNotFound


@pytest.fixture
def undo():
    with ExitStack() as stack:
        yield stack


def draft_of(owner, number, **variables):
    """A filled directory of a point, with the files that there must be of a database."""
    draft = owner.draft(number)
    (draft.path / "rows").mkdir()
    (draft.path / "rows" / "CURRENT").write_text("MANIFEST-000001\n")
    (draft.path / "rows" / "MANIFEST-000001").touch()
    return draft, complete(draft.path, owner.describe(number, variables, ()))


def published(store, *numbers, logged=False):
    """A store with a last point, as a crash leaves it."""
    with ExitStack() as stack:
        owner = Points(store, stack)
        for number in numbers:
            owner.publish(*draft_of(owner, number), logged=logged)
            owner.drop_others()
    return owner


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_store_has_no_point_and_is_locked(tmp_path, undo):
    owner = Points(tmp_path / "store", undo)
    assert (owner.current.point, owner.current.parent, owner.crashed, owner.log) == (0, None, False, [])
    assert [epoch.since for epoch in owner.current.changes] == [owner.current.store]
    assert [owner.next_number(), owner.next_number()] == [1, 2]
    assert names(owner.live) == ["changes", "rows"]
    with pytest.raises(Locked):
        Points(tmp_path / "store", undo)
    undo.close()
    assert not Points(tmp_path / "store", undo).crashed, "a crash before the first point loses nothing"


def test_the_last_point_is_unpacked_and_all_else_deleted(tmp_path, undo):
    before = published(tmp_path / "store", 1, 3)
    assert names(before.store / "points") == ["000003"]
    (before.store / "points" / "000004").mkdir()
    (before.live / "rows" / "left").touch()
    owner = Points(before.store, undo)
    assert owner.current == before.current
    assert owner.crashed
    assert owner.folder == before.store / "points" / "000003"
    assert names(before.store / "points") == ["000003"]
    assert names(owner.live / "rows") == ["CURRENT", "MANIFEST-000001"]


def test_a_point_has_a_number_that_no_segment_has(tmp_path, undo):
    store = published(tmp_path / "store", 2, logged=True).store
    (store / "log").mkdir()
    for name in ("000002.log", "000005.log"):
        (store / "log" / name).touch()
    owner = Points(store, undo)
    assert owner.logged
    assert [path.name for path in owner.log] == ["000002.log", "000005.log"]
    assert owner.next_number() == 6


def test_a_log_that_current_names_must_be_there(tmp_path, undo):
    owner = Points(published(tmp_path / "store", 1).store, undo)
    owner.begin_log()
    assert layout.current(owner.store) == (owner.folder, True)
    undo.close()
    with pytest.raises(Corruption, match=r"log/000001\.log is missing"):
        Points(owner.store, undo)


def test_a_point_that_cannot_be_made_current_leaves_the_one_before(tmp_path, undo, monkeypatch):
    owner = Points(published(tmp_path / "store", 1).store, undo)
    refuse = Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "set_current", refuse)
        with pytest.raises(ColdStoreError, match=r"cannot write .*/CURRENT: .*No space left"):
            owner.publish(*draft_of(owner, 2), logged=False)
        with pytest.raises(ColdStoreError, match=r"cannot write .*/CURRENT"):
            owner.begin_log()
    assert layout.current(owner.store) == (owner.store / "points" / "000001", False)
    undo.close()
    assert Points(owner.store, undo).current.point == 1


def test_the_next_point_is_described_from_the_current_one(tmp_path, undo):
    owner = Points(tmp_path / "store", undo)
    owner.set_variables({"users": entry_of(), "items": entry_of()})
    owner.adopt(ID)
    described = owner.describe(7, {"users": entry_of(rows=3), "others": entry_of()}, ["items"])
    assert (described.point, described.parent, described.store) == (7, ID, owner.current.store)
    assert {name: entry.rows for name, entry in described.variables.items()} == {"users": 3, "others": 0}
    assert described.id not in (owner.current.id, owner.describe(8, {}, ()).id)
    assert sorted(owner.current.variables) == ["items", "users"], "the current one is as it was"


def test_a_closed_store_deletes_its_open_files_before_another_process_may_make_its_own(tmp_path, monkeypatch):
    """Deleted later, they would be those of the next owner, which have the same names."""
    seen, real = [], LockFile.close

    def close(self):
        seen.append((tmp_path / "store" / "live").exists())
        real(self)

    opened = kvemb.open(tmp_path / "store", memory_budget="4MiB")
    monkeypatch.setattr(LockFile, "close", close)
    opened.close()
    assert (seen[0], (tmp_path / "store" / "live").exists()) == (False, False)


def test_a_series_is_no_store(tmp_path, undo):
    (tmp_path / "00000001").mkdir()
    (tmp_path / "00000001" / "manifest.json").touch()
    with pytest.raises(StoreNotFound, match=r"is a series .*/00000001, and restore it; a store is another directory"):
        Points(tmp_path, undo)


def test_a_point_is_read_and_its_database_closed(tmp_path, caplog):
    store, database = published(tmp_path / "store", 1).store, Mock()
    with reading(store, lambda rows, described: database) as (opened, described):
        assert opened is database
        assert described.point == 1
        assert not database.close.called
    assert database.close.called
    (told,) = caplog.messages
    assert told.startswith(f"the store {store} was not closed; it is read as of its durable point of")
    assert "open it for writing" not in told, "it has no log"


def test_a_reader_is_told_to_recover_a_log_only_if_it_may_have_later_writes(tmp_path, caplog):
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", durability="write") as store:
        table = store.get_variable("table", dim=1)
        table.upsert([1], [[1.0]])
        store.flush()
        nothing = copy_of_open(tmp_path / "store", tmp_path / "nothing")
        table.upsert([2], [[1.0]])
        left = [
            nothing,
            *(copy_of_open(tmp_path / "store", tmp_path / name) for name in ("write", "damaged", "headless")),
        ]
    for copied, size in zip(left[2:], (-1, 9), strict=True):
        (segment,) = (copied / layout.LOG).iterdir()
        segment.write_bytes(segment.read_bytes()[:size])
    for copied in left:
        kvemb.Checkpoint.at(copied)
    told = [
        message.endswith(": open it for writing to recover the later writes in its log") for message in caplog.messages
    ]
    assert told == [False, True, True, True]


@pytest.mark.parametrize("error", [ColdStoreError("unreadable"), FileNotFoundError("unreadable")])
def test_an_error_is_raised_unless_the_point_was_replaced(tmp_path, error):
    store, opened = published(tmp_path / "store", 1).store, []

    def refuse_twice(rows, described):
        opened.append(described.point)
        if described.point < 3:
            published(store, described.point + 1)
            raise error
        return Mock()

    with reading(store, refuse_twice) as (_, described):
        assert described.point == 3
    assert opened == [1, 2, 3]
    refuse = Mock(side_effect=error)
    for place in (store, layout.current_point(store)):
        with pytest.raises(type(error), match="unreadable"), reading(place, refuse):
            pass


def test_where_nothing_is_nothing_is_read(tmp_path):
    with pytest.raises(StoreNotFound, match="does not exist"), reading(tmp_path / "none", Mock()):
        pass


def test_a_store_on_a_disk_that_is_read_only_says_that_it_can_be_read(tmp_path, undo, monkeypatch):
    published(tmp_path / "store", 1)
    refused = Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    monkeypatch.setattr(points.layout, "lock", refused)
    monkeypatch.setattr(points.os, "access", lambda path, mode: False)
    with pytest.raises(ColdStoreError, match=r"store for writing, only with read_only=True: .*Read-only file system"):
        Points(tmp_path / "store", undo)
    with pytest.raises(ColdStoreError, match=r"cannot open \S*/new: .*Read-only file system"):
        Points(tmp_path / "new", undo)
