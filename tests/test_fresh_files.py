"""Files that replace existing names, and never write through a link."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from kvemb import fresh_files
from kvemb.fresh_files import remove, replace, write_new


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file"
    for data in (b"one", b"", b"three"):
        write_new(path, data)
        assert path.read_bytes() == data


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_replaced_stays_and_no_temporary_one_is_left(tmp_path, monkeypatch, call):
    path, temporary = tmp_path / "file", tmp_path / "file.tmp"
    replace(path, b"one", temporary)
    monkeypatch.setattr(fresh_files.os, call, Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        replace(path, b"two", temporary)
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("link", ["symbolic", "hard", "broken"])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path, link):
    other, path = tmp_path / "other", tmp_path / "file"
    if link != "broken":
        other.write_bytes(b"mine")
    path.hardlink_to(other) if link == "hard" else path.symlink_to(other)
    write_new(path, b"new")
    assert path.read_bytes() == b"new"
    assert not path.is_symlink()
    assert not other.exists() if link == "broken" else other.read_bytes() == b"mine"


def test_what_is_removed_is_the_link_and_not_what_it_leads_to(tmp_path):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    (folder / "file").touch()
    link.symlink_to(folder)
    remove(link)
    remove(link)  # nothing is there any more
    assert (folder / "file").exists()
    remove(folder)
    assert list(tmp_path.iterdir()) == []
