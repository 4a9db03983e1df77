"""The store's directory: what may become a store, which point is current, and who holds the lock."""

from __future__ import annotations

import os
import shutil

import pytest

from kvemb import layout
from kvemb.errors import ColdStoreError, Corruption, Locked, StoreNotFound


@pytest.mark.parametrize("entries", [[], ["LOCK"], ["LOCK", "live", "points"], ["CURRENT.tmp"], ["CURRENT", "any"]])
def test_a_place_for_a_store(tmp_path, entries):
    for name in entries:
        (tmp_path / name).touch()
    layout.check_place_for_store(tmp_path)
    layout.check_place_for_store(tmp_path / "missing")


def test_no_place_for_a_store(tmp_path):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(StoreNotFound, match=r"it holds 'photo\.jpg'"):
        layout.check_place_for_store(tmp_path)
    with pytest.raises(StoreNotFound, match="is a file"):
        layout.check_place_for_store(tmp_path / "photo.jpg")
    (tmp_path / "manifest.json").touch()
    with pytest.raises(StoreNotFound, match=r"is a checkpoint, not a store.*restore"):
        layout.check_place_for_store(tmp_path)


def test_current_names_a_point(tmp_path):
    with pytest.raises(StoreNotFound, match="no store"):
        layout.current_point(tmp_path)
    (tmp_path / "points" / "000012").mkdir(parents=True)
    assert not layout.is_store(tmp_path)
    layout.set_current(tmp_path, "000012")
    assert layout.is_store(tmp_path)
    assert (tmp_path / "CURRENT").read_bytes() == b"000012\n"
    assert layout.current_point(tmp_path) == tmp_path / "points" / "000012"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CURRENT", "points"]


@pytest.mark.parametrize("text", [b"", b"\n", b"000013\n", b"../points/000012\n", b"/etc", b"\xff\xfe", b"12x"])
def test_a_damaged_current_is_named(tmp_path, text):
    (tmp_path / "points" / "000012").mkdir(parents=True)
    (tmp_path / "CURRENT").write_bytes(text)
    with pytest.raises(Corruption, match="CURRENT is damaged"):
        layout.current_point(tmp_path)


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").touch()
    assert not layout.is_store(tmp_path / "file")
    with pytest.raises(StoreNotFound):
        layout.current_point(tmp_path / "file")


def test_a_lock_is_held_once(tmp_path):
    held = layout.lock(tmp_path)
    with pytest.raises(Locked, match="open for writing elsewhere"):
        layout.lock(tmp_path)
    held.close()
    layout.lock(tmp_path).close()


def test_table_files_are_linked_and_the_rest_copied(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("000004.sst", "000005.blob", "MANIFEST-1", "CURRENT", "LOG", "LOG.old.3"):
        (source / name).write_text(name)
    layout.link_rows(source, tmp_path / "deep" / "copy")
    copies = {path.name: path for path in (tmp_path / "deep" / "copy").iterdir()}
    assert sorted(copies) == ["000004.sst", "000005.blob", "CURRENT", "MANIFEST-1"]
    for name, path in copies.items():
        assert path.read_text() == name
        assert os.path.samefile(path, source / name) == name.endswith(("sst", "blob"))


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "000004.sst").write_text("rows")
    (tmp_path / "source" / "CURRENT").touch()

    def refuse(*paths):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    layout.link_rows(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy" / "000004.sst").read_text() == "rows"
    assert not os.path.samefile(tmp_path / "copy" / "000004.sst", tmp_path / "source" / "000004.sst")


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    with pytest.raises(Corruption, match="source is damaged: it has no file CURRENT"):
        layout.link_rows(tmp_path / "source", tmp_path / "copy")

    def refuse(*paths):
        raise OSError(28, "No space left on device")

    (tmp_path / "source" / "CURRENT").touch()
    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(ColdStoreError, match=r"cannot copy .* No space left"):
        layout.link_rows(tmp_path / "source", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
