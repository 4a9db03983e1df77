"""The store's directory: what may become a store, which point is current, and who holds the lock."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from kvemb import fresh_files
from kvemb.durability import layout
from kvemb.errors import ColdStoreError, Corruption, Locked, StoreNotFound

no_link = Mock(side_effect=OSError(18, "Invalid cross-device link"))


def test_current_names_a_point(tmp_path):
    with pytest.raises(StoreNotFound, match="no store"):
        layout.current_point(tmp_path)
    (tmp_path / "points" / "000012").mkdir(parents=True)
    assert not layout.is_store(tmp_path)
    layout.set_current(tmp_path, 12)
    assert layout.is_store(tmp_path)
    assert (tmp_path / "CURRENT").read_bytes() == b"000012\n"
    assert layout.current_point(tmp_path) == tmp_path / "points" / "000012"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CURRENT", "points"]


def test_a_store_whose_deletion_was_killed_says_so_and_how_to_complete_it(tmp_path):
    """Earlier versions deleted a store that resumed. It was told as damage, and kvemb repair cannot help."""
    (tmp_path / "live").mkdir()
    layout.set_current(tmp_path, 12)
    with pytest.raises(
        Corruption, match=r"its deletion by CheckpointManager\.resume was interrupted; call resume again"
    ):
        layout.current_point(tmp_path)


def test_points_belong_to_a_history():
    assert [layout.history(number) for number in (1, 999_999, 1_000_000, 1_000_001, 5_000_000)] == [0, 0, 1, 1, 5]


@pytest.mark.parametrize("text", [b"", b"\n", b"000013\n", b"../points/000012\n", b"/etc", b"\xff\xfe", b"12x"])
def test_a_damaged_current_is_named(tmp_path, text):
    (tmp_path / "points" / "000012").mkdir(parents=True)
    (tmp_path / "CURRENT").write_bytes(text)
    with pytest.raises(Corruption, match="CURRENT is damaged"):
        layout.current_point(tmp_path)


def test_a_point_that_is_replaced_while_current_is_read_is_no_damage(tmp_path, monkeypatch):
    """As a reader beside the store's owner meets it: the next point is there, and the one it read of is deleted."""
    (tmp_path / "points" / "000012").mkdir(parents=True)
    layout.set_current(tmp_path, 12)
    there = Path.is_dir

    def late(path):
        if path.name == "000012":
            (tmp_path / "points" / "000013").mkdir()
            layout.set_current(tmp_path, 13)
            path.rmdir()
        return there(path)

    monkeypatch.setattr(Path, "is_dir", late)
    assert layout.current_point(tmp_path) == tmp_path / "points" / "000013"


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").touch()
    assert not layout.is_store(tmp_path / "file")
    with pytest.raises(StoreNotFound):
        layout.current_point(tmp_path / "file")


def test_a_lock_is_held_once(tmp_path):
    held = layout.lock(tmp_path)
    with pytest.raises(Locked, match="open for writing already, by this process"):
        layout.lock(tmp_path)
    held.close()
    layout.lock(tmp_path).close()


def checkpoint(path):
    """Files such as a checkpoint has."""
    (path / "rows").mkdir(parents=True)
    (path / "hot").mkdir()
    for name in ("000004.sst", "000005.blob", "MANIFEST-000001", "LOG", "LOG.old.3"):
        (path / "rows" / name).write_text(name)
    (path / "rows" / "CURRENT").write_text("MANIFEST-000001\n")
    (path / "hot" / "1.keys").write_text("keys")
    (path / "hot" / "2.keys").write_text("named by no manifest")
    return path


def test_files_that_never_change_are_linked_and_the_rest_copied(tmp_path):
    source = checkpoint(tmp_path / "source")
    layout.unpack(source, tmp_path / "deep" / "copy", {"hot/1.keys"})
    copies = {path.name: path for path in (tmp_path / "deep" / "copy").rglob("*.*") if path.is_file()}
    assert sorted(copies) == ["000004.sst", "000005.blob", "1.keys"]
    for path in copies.values():
        assert os.path.samefile(path, source / path.relative_to(tmp_path / "deep" / "copy"))
    rest = {path.name: path for path in (tmp_path / "deep" / "copy" / "rows").glob("[CML]*")}
    assert sorted(rest) == ["CURRENT", "MANIFEST-000001"]
    for name, path in rest.items():
        assert path.read_text() == (source / "rows" / name).read_text()
        assert not os.path.samefile(path, source / "rows" / name)
    assert not (tmp_path / "deep" / "copy" / "changes").exists()


def test_files_are_copied_where_they_cannot_be_linked(tmp_path, monkeypatch):
    source = checkpoint(tmp_path / "source")

    monkeypatch.setattr(os, "link", no_link)
    layout.unpack(source, tmp_path / "copy", {"hot/1.keys"})
    assert (tmp_path / "copy" / "rows" / "000004.sst").read_text() == "000004.sst"
    assert not os.path.samefile(tmp_path / "copy" / "rows" / "000004.sst", source / "rows" / "000004.sst")


def test_a_link_or_a_copy_never_takes_the_place_of_a_file(tmp_path, monkeypatch):
    for name in ("source", "there"):
        (tmp_path / name).write_text(name)
    (tmp_path / "dangling").symlink_to(tmp_path / "made")

    for patched in (False, True):
        if patched:
            monkeypatch.setattr(os, "link", no_link)
        for name in ("there", "dangling"):
            with pytest.raises(OSError, match=r"exists|cross-device"):
                fresh_files.link_or_copy(tmp_path / "source", tmp_path / name)
    assert (tmp_path / "there").read_text() == "there"
    assert not (tmp_path / "made").exists()


def test_a_copy_that_fails_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    with pytest.raises(Corruption, match="rows is damaged: it has no file CURRENT"):
        layout.unpack(tmp_path / "source", tmp_path / "copy", set())

    source = checkpoint(tmp_path / "sound")
    monkeypatch.setattr(shutil, "copyfile", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ColdStoreError, match=r"cannot copy .* No space left"):
        layout.unpack(source, tmp_path / "copy", {"hot/1.keys"})
    assert not (tmp_path / "copy").exists()


def test_a_mirror_reads_like_the_rows_and_leaves_nothing(tmp_path):
    source = checkpoint(tmp_path / "source")
    before = sorted(path.name for path in (source / "rows").iterdir())
    with layout.mirrored(source / "rows") as mirror:
        assert (mirror / "CURRENT").read_text() == "MANIFEST-000001\n"
        (mirror / "LOG").write_text("a reader's own")
    assert not mirror.exists()
    assert sorted(path.name for path in (source / "rows").iterdir()) == before
    assert (source / "rows" / "LOG").read_text() == "LOG"
