"""Hard links, and filesystems that refuse them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb import hard_links
from kvemb.errors import ColdStoreError

NO_LINKS = [errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP]


def refuse(monkeypatch, error):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(error, os.strerror(error))))


def test_a_link_is_made_or_refused(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("x")
    assert hard_links.linked(source, target)
    assert os.path.samefile(source, target)
    with pytest.raises(FileExistsError):
        hard_links.linked(source, target)
    for error in NO_LINKS:
        refuse(monkeypatch, error)
        assert not hard_links.linked(source, tmp_path / "other")
        with pytest.raises(OSError, match=os.strerror(error)):
            hard_links.linked(source, target)


@pytest.mark.parametrize("error", NO_LINKS)
def test_a_store_says_at_its_opening_that_it_needs_links(tmp_path, monkeypatch, error):
    path = tmp_path / "store"
    with monkeypatch.context() as patch:
        refuse(patch, error)
        for _ in range(2):
            told = rf"a store cannot be at .*store, because its filesystem refuses hard links \({os.strerror(error)}\)"
            with pytest.raises(ColdStoreError, match=told):
                kvemb.open(path, memory_budget="4MiB")
    assert [file for file in path.rglob("*") if file.is_file() and file.name != "LOCK"] == []
    with kvemb.open(path, memory_budget="4MiB") as store:
        store.get_variable("table", dim=1).upsert([1], np.ones((1, 1), np.float32))


@pytest.fixture
def on_ext4():
    """A folder on ext4, where a file has at most 65,000 links."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        kinds = {Path(mount): kind for mount, kind in mounts}
        path = Path(folder).resolve()
        if next(kinds[each] for each in path.parents if each in kinds) != "ext4":
            pytest.skip("there is no ext4")
        yield path


def fill_links(path, folder):
    """Make links to a file until it may have no more."""
    folder.mkdir()
    made = 0
    while hard_links.linked(path, folder / str(made)):
        made += 1
    assert made >= 64_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/mounts").exists(), reason="no Linux")
def test_a_file_with_as_many_links_as_it_may_have_is_copied_once(on_ext4):
    with kvemb.open(on_ext4 / "store", memory_budget="4MiB") as store:
        table = store.get_variable("table", dim=4)
        table.upsert(np.arange(1000), np.ones((1000, 4), np.float32))
        store.flush()
        (file,) = (on_ext4 / "store" / "live" / "rows").glob("*.sst")
        fill_links(file, on_ext4 / "links")
        with kvemb.CheckpointManager(on_ext4 / "series") as series:
            for key in (1000, 1001, 1002):
                table.upsert([key], np.full((1, 4), key, np.float32))
                saved = series.save(store)
                assert kvemb.verify(saved, deep=True)
        assert not os.path.samefile(file, on_ext4 / "links" / "0")
        assert os.path.samefile(file, saved.path / "rows" / file.name), "later checkpoints share the copy"
        (first,) = (on_ext4 / "series" / "00000001" / "rows").glob(file.name)
        assert os.path.samefile(file, first)
        assert table.lookup([5, 1002])[:, 0].tolist() == [1, 1002]
    assert kvemb.verify(on_ext4 / "store", deep=True)


def test_only_files_that_may_have_no_more_links_are_replaced(tmp_path, monkeypatch):
    full, other = tmp_path / "full.sst", tmp_path / "other.sst"
    for path in (full, other):
        path.write_text(path.name)
    (tmp_path / "other.sst.link").write_text("left by a process that was killed")
    kept, link = {path: path.stat().st_ino for path in (full, other)}, os.link
    monkeypatch.setattr(os, "link", lambda a, b: refuse_one(link, a, b, full))
    hard_links.renew_full(tmp_path, "*.sst")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.sst", "other.sst"]
    assert [path.read_text() for path in (full, other)] == ["full.sst", "other.sst"]
    assert [path.stat().st_ino == kept[path] for path in (full, other)] == [False, True]


def refuse_one(link, source, target, refused):
    if source == refused:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
    link(source, target)
