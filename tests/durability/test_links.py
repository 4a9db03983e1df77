"""Checkpoints whose files are symbolic links, as in caches of model hubs and in git-annex."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout
from kvemb.errors import Corruption
from kvemb.handle import inside


@pytest.fixture(params=["relative", "absolute", "a chain"])
def linked(request, open_store, tmp_path) -> Path:
    """A checkpoint each of whose files is a symbolic link into a folder of blobs."""
    with open_store(tmp_path / "origin") as store:
        table = store.get_variable("table", dim=2, hot_rows=64)
        table.upsert(np.arange(1000), np.ones((1000, 2), np.float32))
        made = store.checkpoint(tmp_path / "plain").path
    shutil.rmtree(tmp_path / "origin")
    place, blobs = tmp_path / "linked", tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in made.rglob("*") if path.is_file())):
        link = place / path.relative_to(made)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = blobs / f"{number:03d}"
        os.rename(path, blob)
        if request.param == "a chain":
            (blobs / f"link{number:03d}").symlink_to(blob.name)
            blob = blobs / f"link{number:03d}"
        link.symlink_to(blob if request.param == "absolute" else os.path.relpath(blob, link.parent))
    return place


def links_below(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_symlink()]


def test_a_checkpoint_of_links_is_restored_as_files(open_store, linked, tmp_path):
    assert kvemb.verify(linked, deep=True)
    with kvemb.restore(linked, tmp_path / "store", memory_budget="8MiB", warm=True) as store:
        table = store.variables["table"]
        assert table.size() == 1000
        table.upsert([5, 2000], np.zeros((2, 2), np.float32))
        later = store.checkpoint(tmp_path / "later").path
        assert links_below(tmp_path / "store") == []
        assert links_below(later) == []
        tables = [path for path in (tmp_path / "blobs").iterdir() if not path.is_symlink() and path.stat().st_nlink > 1]
        assert tables, "on one filesystem what a link leads to is shared"
    shutil.rmtree(tmp_path / "blobs")
    shutil.rmtree(linked)
    with open_store(tmp_path / "store") as store:
        assert store.variables["table"].size() == 1001
    for place in (tmp_path / "store", later):
        assert kvemb.verify(place, deep=True)


def test_a_checkpoint_of_links_is_copied_across_filesystems(monkeypatch, linked, tmp_path):
    refuse = Mock(side_effect=OSError(18, "Invalid cross-device link"))
    monkeypatch.setattr(os, "link", refuse)
    layout.unpack(linked, tmp_path / "copy", inside(kvemb.Checkpoint(linked)).named_files)
    assert links_below(tmp_path / "copy") == []


def test_a_series_with_a_checkpoint_of_links_pulls_files(linked, tmp_path):
    pytest.importorskip("fsspec")
    root = tmp_path / "series"
    root.mkdir()
    shutil.copytree(linked, root / "00000001")  # as files: copytree follows
    url = str(tmp_path / "elsewhere")
    with kvemb.CheckpointManager(root) as series:
        series.push(url)
        shutil.rmtree(root / "00000001")
        (root / "00000002").symlink_to(linked)
        pulled = series.pull(url)
        assert pulled.path.name == "00000001"
        assert links_below(pulled.path) == []
        assert kvemb.verify(pulled, deep=True)


def test_a_link_to_nothing_is_told(linked, tmp_path):
    table = next(linked.glob("rows/*.sst"))
    table.resolve().unlink()
    with pytest.raises(Corruption, match=rf"{table} is missing: it is a symbolic link to .*, which is missing"):
        kvemb.restore(linked, tmp_path / "store")
    assert not (tmp_path / "store").exists()
