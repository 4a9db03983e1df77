"""Making and dropping marks."""

from __future__ import annotations

import os

import pytest
from crashes import killed_at_each
from deltas import columns_of, fill

import kvemb
from kvemb.errors import ColdStoreError, MarkNotFound


def test_a_mark_is_a_checkpoint_in_the_store_until_it_is_dropped(store, tmp_path):
    fill(store, [1], 1)
    mark = store.mark("best", block=True)
    fill(store, [2], 1)
    store.flush()
    assert store.marks == [mark]
    assert kvemb.Checkpoint(mark.path).variables["table"].rows == 1
    with kvemb.open(mark.path, read_only=True) as reader:
        assert reader.variables["table"].export()[0].tolist() == [1]
    store.drop_mark("best")
    assert store.marks == []
    assert not mark.path.exists()
    with pytest.raises(MarkNotFound):
        store.drop_mark(mark)


def test_a_state_that_has_a_durable_point_is_not_written_again(store, tmp_path):
    fill(store, [1], 1)
    store.flush()
    first, second = store.mark(), store.mark()
    assert first != second
    assert first.path == second.path == tmp_path / "store" / "points" / f"{store.point:06d}"
    store.drop_mark(first)
    fill(store, [1], 2)
    store.flush()
    store.rollback(second)
    assert store.variables["table"].lookup([1])[0, 0] == 1


def test_marks_survive_closing_and_readers_see_them(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        fill(store, [1], 1)
        mark = store.mark(extra={"epoch": 1}, block=True)
        fill(store, [1], 2)
    with open_store(tmp_path / "store", read_only=True) as reader:
        assert reader.marks == [mark]
        assert kvemb.Checkpoint(reader.marks[0].path).extra == {"epoch": 1}
    with open_store(mark.path, read_only=True) as reader:
        assert reader.marks == []
    with open_store(tmp_path / "store") as store:
        store.rollback(mark)
        assert store.variables["table"].lookup([1])[0, 0] == 1


def test_only_so_many_without_a_name_are_kept(open_store, tmp_path):
    store = open_store(tmp_path / "store", keep_marks=2)
    made = []
    for value in range(4):
        fill(store, [1], value)
        made.append(store.mark(block=True))
    assert store.marks == made[2:]
    assert len(list((tmp_path / "store" / "points").iterdir())) == 2
    with pytest.raises(ValueError, match="keep_marks must be"):
        open_store(tmp_path / "other", keep_marks=-1)


def test_a_mark_that_cannot_be_written_is_reported_where_it_is_used(store, tmp_path, monkeypatch):
    table = fill(store, [1], 1)
    (tmp_path / "store" / "marks").write_text("in the way")
    mark = store.mark()
    with pytest.raises(ColdStoreError, match="marks"):
        store.rollback(mark)
    with pytest.raises(MarkNotFound, match="was never complete"):
        store.rollback(mark)
    (tmp_path / "store" / "marks").unlink()
    table.upsert([1], [[2, 2, 2]])
    store.rollback(store.mark())
    assert table.lookup([1])[0, 0] == 2


def test_arguments_are_checked_before_anything_is_written(store):
    point = store.point
    for wrong in ({"name": 3}, {"extra": 3}, {"files": 3}):
        with pytest.raises(TypeError):
            store.mark(**wrong)
    with pytest.raises(ValueError, match="printable"):
        store.mark("")
    assert (store.point, store.marks) == (point, [])


@pytest.mark.slow
def test_a_kill_at_any_instant_leaves_a_mark_that_works_or_none(store, tmp_path):
    fill(store, range(10), 1)
    store.mark("first", block=True)
    at_first = columns_of(store)
    fill(store, range(5), 2)
    at_second = columns_of(store)

    def run() -> None:
        store.mark("second", block=True)
        store.drop_mark("first")

    calls = ["rename", "replace", "fsync", "unlink", "rmdir"]
    found = set()
    for left in killed_at_each(calls, run, tmp_path / "store", tmp_path / "copies"):
        with kvemb.open(left, memory_budget="8MiB") as reopened:
            names = [mark.name for mark in reopened.marks]
            found.add(tuple(names))
            for mark in reopened.marks:
                reopened.rollback(mark)
                assert columns_of(reopened) == (at_first if mark.name == "first" else at_second)
        assert len(os.listdir(left / "points")) <= len(names) + 1
    assert found == {("first",), ("first", "second"), ("second",)}
