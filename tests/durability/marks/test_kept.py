"""The marks of a store on disk."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path

import pytest

from kvemb import fresh_files
from kvemb.durability import manifest
from kvemb.durability.marks.kept import Marks, check_name, read_marks
from kvemb.errors import ColdStoreError, Corruption, MarkNotFound, UnsupportedFormat

STORE = "a" * 32


def raising(error):
    def fails(*args, **kwargs):
        raise error

    return fails


def kept(marks, name=None, point=1):
    mark = marks.new(name, STORE, point)
    marks.keep(mark)
    return mark


def test_marks_are_read_again_in_the_order_in_which_they_were_made(tmp_path):
    marks = Marks(tmp_path, 10)
    made = [kept(marks), kept(marks, "best", 2), kept(marks, point=2), kept(marks, "last", 3)]
    (tmp_path / "marks" / "left.tmp").write_text("by a crash")
    again = Marks(tmp_path, 10)
    assert again.all() == marks.all() == read_marks(tmp_path) == made
    assert [(mark.name, mark.path.name, mark.created) for mark in again.all()] == [
        (mark.name, mark.path.name, mark.created) for mark in made
    ]
    assert again.points() == {1, 2, 3}
    assert not (tmp_path / "marks" / "left.tmp").exists()
    assert again.find("best", STORE) == made[1]
    assert again.find(made[0], STORE) == made[0]


def test_a_name_is_that_of_the_last_mark(tmp_path):
    marks = Marks(tmp_path, 10)
    first, second = kept(marks, "best"), kept(marks, "best")
    assert marks.all() == read_marks(tmp_path) == [second]
    with pytest.raises(MarkNotFound, match="the mark 'best' any more"):
        marks.find(first, STORE)


def test_the_oldest_without_a_name_are_dropped(tmp_path):
    marks = Marks(tmp_path, 2)
    named, *unnamed = kept(marks, "best"), kept(marks), kept(marks), kept(marks)
    assert marks.all() == read_marks(tmp_path) == [named, *unnamed[1:]]
    marks.drop(named)
    assert read_marks(tmp_path) == unnamed[1:]


def test_what_is_held_stays_beside_those_that_are_kept_until_its_last_copy_is_gone(tmp_path, caplog):
    marks = Marks(tmp_path, 2)
    first = kept(marks)
    hold = marks.hold(first.id)
    assert marks.hold(first.id) is hold
    copies = [copy.copy(hold), copy.deepcopy([hold])]
    del hold
    second, third = kept(marks), kept(marks)
    assert marks.all() == read_marks(tmp_path) == [first, second, third]
    assert caplog.messages == []
    assert pickle.loads(pickle.dumps(copies)) == [{}, [{}]]
    copies.clear()
    fourth = kept(marks)
    assert marks.all() == read_marks(tmp_path) == [third, fourth]
    kept(marks)
    (told,) = caplog.messages
    assert "it keeps the newest 2 without a name" in told


def test_a_mark_that_is_dropped_while_marks_are_read_is_left_out(tmp_path, monkeypatch):
    marks = Marks(tmp_path, 2)
    first, second = kept(marks), kept(marks)
    listed, glob = list((tmp_path / "marks").glob("*.json")), Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, pattern: listed if path.name == "marks" else glob(path, pattern))
    marks.drop(first)
    assert read_marks(tmp_path) == [second]


def test_a_damaged_file_is_named(tmp_path):
    (path,) = (tmp_path / "marks" / f"{kept(Marks(tmp_path, 2), 'best').id}.json",)
    sound = path.read_text()
    for damaged in (sound[:-3], sound.replace('"best"', '"bust"'), "[]", "", sound.replace('"point"', '"paint"')):
        path.write_text(damaged)
        with pytest.raises(Corruption, match=f"{path.name} is damaged: .*; it says which durable point is kept"):
            read_marks(tmp_path)
    data = {**json.loads(sound), "point": 0}
    del data["checksum"]
    path.write_text(json.dumps({"checksum": manifest.checksum_of(data), **data}))
    with pytest.raises(Corruption, match="point must be an int from 1"):
        Marks(tmp_path, 2)
    path.write_text(json.dumps({**json.loads(sound), "format": 2}))
    with pytest.raises(UnsupportedFormat, match="has format 2, this kvemb reads 1"):
        read_marks(tmp_path)
    path.write_text(sound)
    path.rename(path.with_name("b" * 32 + ".json"))
    with pytest.raises(Corruption, match="it is the mark"):
        read_marks(tmp_path)


def test_names_are_checked():
    assert check_name(None) is None
    assert check_name("best model") == "best model"
    for name in ("", "a\nb", "a" * 201):
        with pytest.raises(ValueError, match="1 to 200 printable characters"):
            check_name(name)
    with pytest.raises(TypeError, match="must be a str or None, got 3"):
        check_name(3)


def test_of_two_marks_of_a_name_which_a_crash_has_left_the_newer_is_found(tmp_path):
    marks = Marks(tmp_path, 10)
    kept(marks, "best")
    (file,) = (tmp_path / "marks").iterdir()
    before = file.read_bytes()
    kept(marks, "best", 2)
    file.write_bytes(before)
    assert [mark.name for mark in Marks(tmp_path, 10).all()] == ["best", "best"]
    assert Marks(tmp_path, 10).find("best", STORE).path.name == "000002"


def test_a_mark_whose_file_cannot_be_deleted_is_kept(tmp_path, monkeypatch):
    marks = Marks(tmp_path, 10)
    mark = kept(marks)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", raising(OSError(5, "Input/output error")))
        with pytest.raises(ColdStoreError, match="Input/output error"):
            marks.drop(mark)
    assert marks.all() == read_marks(tmp_path) == [mark]
    marks.drop(mark)
    assert marks.all() == read_marks(tmp_path) == []


@pytest.mark.parametrize("step", ["fsync", "replace", "sync_directory"])
def test_of_a_mark_that_could_not_be_kept_nothing_is_left(tmp_path, monkeypatch, step):
    marks = Marks(tmp_path, 10)
    before = kept(marks, "best")
    with monkeypatch.context() as patch:
        owner = fresh_files if step == "sync_directory" else os
        patch.setattr(owner, step, raising(OSError(28, "No space left on device")))
        with pytest.raises(ColdStoreError, match="No space left"):
            kept(marks, "best", 2)
    assert marks.all() == read_marks(tmp_path) == [before]
    assert [path.name for path in (tmp_path / "marks").iterdir()] == [f"{before.id}.json"]
