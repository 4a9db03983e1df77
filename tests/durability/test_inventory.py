"""Inventories: what is hashed, which checksums are kept, and how each kind of damage is reported."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from manifests import manifest_of

from kvemb.durability import inventory, manifest
from kvemb.durability.manifest import FileEntry
from kvemb.errors import ColdStoreError, Corruption


def entry(data: bytes) -> FileEntry:
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def folder(tmp_path):
    """A directory of a table file, a small file and a manifest."""
    made = tmp_path / "made"
    (made / "rows").mkdir(parents=True)
    (made / "rows" / "000001.sst").write_bytes(b"table")
    (made / "rows" / "CURRENT").write_bytes(b"small")
    (made / manifest.NAME).write_bytes(b"{}")
    return made


FILES = {"rows/000001.sst": entry(b"table"), "rows/CURRENT": entry(b"small")}
DESCRIBED = manifest_of(files=FILES)


def take(folder, before=None, known=None, **how):
    with inventory.Inventory(folder, before, known or {}) as taken:
        return taken.take(**how)


def damages(folder, *, deep=True):
    return list(inventory.damages(folder, DESCRIBED, deep=deep))


def test_an_inventory_is_of_every_file_but_the_manifest(folder):
    assert take(folder) == FILES


def test_a_file_shared_with_the_directory_before_is_not_read(folder, tmp_path):
    after = tmp_path / "after"
    (after / "rows").mkdir(parents=True)
    os.link(folder / "rows" / "000001.sst", after / "rows" / "000001.sst")
    (after / "rows" / "CURRENT").write_bytes(b"small")
    known = {"rows/000001.sst": FileEntry(5, "known"), "rows/CURRENT": FileEntry(5, "known")}
    taken = take(after, folder, known)
    assert taken == {"rows/000001.sst": FileEntry(5, "known"), "rows/CURRENT": entry(b"small")}
    assert take(after, folder, {}) == FILES, "what is not known is read"


def test_files_that_were_begun_are_read_once_and_count_only_if_they_stay(monkeypatch, folder):
    read: list[str] = []
    measure = inventory.measure
    monkeypatch.setattr(inventory, "measure", lambda path: (read.append(Path(path).name), measure(path))[1])
    (folder / "rows" / "000002.sst").write_bytes(b"goes")
    with inventory.Inventory(folder, None, {}) as filled:
        filled.begin("rows", ".sst")
        assert {name for each in filled.begun for name in each.result()} == {"rows/000001.sst", "rows/000002.sst"}
        (folder / "rows" / "000002.sst").unlink()
        (folder / "rows" / "000003.sst").write_bytes(b"comes")
        assert filled.take() == {**FILES, "rows/000003.sst": entry(b"comes")}
    assert sorted(read) == ["000001.sst", "000002.sst", "000003.sst", "CURRENT"]


@pytest.mark.parametrize("data", [b"tabl", b"tabLe"])
def test_a_copy_of_a_file_that_never_changes_must_be_as_it_was(folder, tmp_path, data):
    copy = tmp_path / "copy"
    (copy / "rows").mkdir(parents=True)
    (copy / "rows" / "000001.sst").write_bytes(data)
    (copy / "rows" / "CURRENT").write_bytes(b"changed")
    assert take(copy, folder, FILES)["rows/000001.sst"] == entry(data)
    with pytest.raises(Corruption, match=rf"{folder}/rows/000001\.sst is damaged: its checksum"):
        take(copy, folder, FILES, same_names=True)
    (copy / "rows" / "000001.sst").write_bytes(b"table")
    taken = take(copy, folder, FILES, same_names=True)
    assert taken == {**FILES, "rows/CURRENT": entry(b"changed")}, "other files may change"


def test_a_sound_directory_has_no_damage(folder):
    read: list[int] = []
    assert list(inventory.damages(folder, DESCRIBED, deep=True, progress=read.append)) == []
    assert read == [5, 5]
    inventory.check(folder, DESCRIBED)


def test_a_changed_table_file_is_found_only_where_all_is_hashed(folder):
    (folder / "rows" / "000001.sst").write_bytes(b"tabLe")
    assert damages(folder, deep=False) == []
    assert damages(folder) == [f"{folder}/rows/000001.sst is damaged: its checksum differs from the manifest"]


@pytest.mark.parametrize("deep", [True, False])
def test_what_opening_would_not_notice_is_always_found(folder, deep):
    (folder / "rows" / "000001.sst").write_bytes(b"tab")
    (folder / "rows" / "CURRENT").write_bytes(b"smaLL")
    assert damages(folder, deep=deep) == [
        f"{folder}/rows/000001.sst is damaged: it has 3 bytes and should have 5",
        f"{folder}/rows/CURRENT is damaged: its checksum differs from the manifest",
    ]
    with pytest.raises(Corruption, match=rf"{folder}/rows/000001\.sst is damaged: .*; run kvemb verify --deep"):
        inventory.check(folder, DESCRIBED)


def test_a_missing_file_is_told_with_the_link_that_leads_nowhere(folder):
    (folder / "rows" / "000001.sst").unlink()
    (folder / "rows" / "000001.sst").symlink_to("elsewhere.sst")
    (folder / "rows" / "CURRENT").unlink()
    assert damages(folder) == [
        f"{folder}/rows/000001.sst is missing: it is a symbolic link to elsewhere.sst, which is missing",
        f"{folder}/rows/CURRENT is missing",
    ]


def test_a_file_that_cannot_be_read_is_told(folder):
    (folder / "rows" / "CURRENT").unlink()
    (folder / "rows" / "CURRENT").symlink_to("CURRENT")
    (line,) = damages(folder)
    assert line.startswith(f"{folder}/rows/CURRENT cannot be read: ")


def test_too_few_file_descriptors_are_no_damage(folder, monkeypatch):
    refuse = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    monkeypatch.setattr(inventory, "open", refuse, raising=False)
    with pytest.raises(ColdStoreError, match=r"cannot read .*Too many open files"):
        damages(folder)


def refused(folder, message):
    with pytest.raises(Corruption) as told, inventory.naming_damaged_file(folder, DESCRIBED):
        raise Corruption(message)
    return str(told.value)


def test_the_damaged_file_is_added_to_an_error_that_names_none(folder):
    assert refused(folder, "block checksum mismatch") == "block checksum mismatch", "no file is damaged"
    (folder / "rows" / "000001.sst").write_bytes(b"tabLe")
    named = refused(folder, "block checksum mismatch")
    assert named.startswith(f"{folder}/rows/000001.sst is damaged")
    assert named.endswith(": block checksum mismatch")
    assert refused(folder, "in 000001.sst") == "in 000001.sst"
