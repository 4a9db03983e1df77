"""Hostile manifests, stores, series and URLs cannot make kvemb write outside of its directories."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quick import quick
from versions import fill

import kvemb
from kvemb import fresh_files
from kvemb.durability import layout, manifest
from kvemb.durability.manifest import FileEntry
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.journal import journal

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def manager(store: kvemb.Store, tmp_path: Path) -> Any:
    """A series with one checkpoint, pushed to memory:// and the name of the directory."""
    with kvemb.CheckpointManager(tmp_path / "series") as manager:
        fill(store, 1)
        manager.save(store)
        manager.push(f"memory://{tmp_path.name}")
        yield manager


def put_manifest(url: str, number: int, described: manifest.Manifest, scratch: Path) -> None:
    """Put a manifest, with the checksum that fits it, at a URL."""
    scratch.mkdir()
    manifest.write(described, scratch)
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/checkpoints/{number:08d}.json", (scratch / manifest.NAME).read_bytes())


# Names in manifests.

STRANGE = [
    *("manifest.json", "CURRENT", "CURRENT.tmp", "LOCK", "live", "points/000001/manifest.json", "notes.txt"),
    *("rows/LOCK", "rows/LOG", "rows/LOG.old.1", "rows/000001.dbtmp", "rows/manifest.json", "rows/a/000001.sst"),
    *("changes/CURRENT", "changes/1-2.keys", "hot/a.keys", "rows", "rows/000001.sst\n", "Rows/000001.sst"),
    *("/rows/CURRENT", "./rows/CURRENT", "rows/../CURRENT", "../rows/CURRENT", ""),
]


def test_a_file_that_no_checkpoint_lists_is_refused(manager, tmp_path):
    described, told = inside(manager.latest()), r"is damaged: (.* is no file of a checkpoint|files must have paths)"
    for name in STRANGE:
        manifest.write(replace(described, files={**described.files, name: FileEntry(0, "ab" * 32)}), tmp_path)
        with pytest.raises(Corruption, match=told):
            manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"format": ' * 100_000], ids=["arrays", "objects"])
def test_a_manifest_too_deep_to_be_read_is_damaged(tmp_path, text):
    (tmp_path / manifest.NAME).write_text(text)
    with pytest.raises(Corruption, match=r"manifest\.json is damaged"):
        manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "rows/LOCK"])
def test_a_remote_that_lists_a_table_as_the_manifest_destroys_nothing(manager, store, tmp_path, name):
    checkpoint = manager.latest()
    table = max((entry.bytes, path) for path, entry in checkpoint.inventory.items() if path.endswith(".sst"))[1]
    before = (checkpoint.path / table).read_bytes()
    hostile = replace(inside(checkpoint), id="f" * 32)
    hostile.files[name] = hostile.files[table]
    url = f"memory://{tmp_path.name}"
    put_manifest(url, 2, hostile, tmp_path / "scratch")
    with pytest.raises(Corruption, match="is no file of a checkpoint"):
        manager.pull(url)
    assert (checkpoint.path / table).read_bytes() == before
    assert kvemb.verify(checkpoint, deep=True)
    assert manager.numbers() == [1]
    store.check(deep=True)


# Names that lead elsewhere.


def test_what_is_written_replaces_a_link_and_is_not_written_through_it(tmp_path):
    precious = tmp_path / "precious"
    for link in (os.link, os.symlink):
        for name, write in (
            ("manifest.json", lambda place: manifest.write(manifest.Manifest("a", "b", None, 1, 0.0), place)),
            ("CURRENT.tmp", lambda place: layout.set_current(place, 7)),
            ("000007.log", lambda place: journal.Journal(place, 7).close()),
        ):
            precious.write_bytes(b"precious")
            place = tmp_path / f"{link.__name__}-{name}"
            place.mkdir()
            link(precious, place / name)
            write(place)
            assert precious.read_bytes() == b"precious", (link, name)
            assert precious.stat().st_nlink == 1


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory of somebody else's, with names that a store uses too."""
    place = tmp_path / "outside"
    for name in ("000001/a", "rows/CURRENT", "changes/000001.keys", "000001.log", "000002.log", "file"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"somebody's {name}")
    return place


def contents(place: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(place)): path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


REFUSED = ["points", "log", "LOCK", "LOCK to nothing"]
REPLACED = [
    *("live", "live to nothing", "live to a file", "CURRENT.tmp", "CURRENT.tmp to nothing", "points/000001"),
    *("points/000002", "points/000004", "points/000005", "points/.000004.{pid}-1.tmp"),
    *("log/000002.log", "log/000003.log"),
]


@pytest.mark.parametrize("what", quick(REFUSED + REPLACED, 8))
def test_a_store_with_a_name_that_leads_elsewhere_changes_nothing_there(open_store, tmp_path, outside, what):
    with open_store(tmp_path / "store", durability="write") as store:
        fill(store, 1)
    before = contents(outside)
    name, _, target = what.format(pid=os.getpid()).partition(" to ")
    link = tmp_path / "store" / name
    fresh_files.remove(link)
    is_file = target == "a file" or name.startswith(("CURRENT", "LOCK", "log/"))
    link.symlink_to(outside / ("nothing" if target == "nothing" else "file" if is_file else ""))
    if what in REFUSED:
        with pytest.raises(Corruption, match=f"{name} is a symbolic link"):
            kvemb.open(tmp_path / "store", memory_budget="8MiB", durability="write")
        assert link.is_symlink()
    else:
        with open_store(tmp_path / "store", durability="write") as store:
            for version in range(2, 5):
                fill(store, version)
                store.flush()
            assert not link.is_symlink()
        assert kvemb.verify(tmp_path / "store", deep=True)
    assert contents(outside) == before


def test_a_series_with_a_name_that_leads_elsewhere_changes_nothing_there(store, manager, tmp_path, outside):
    before = contents(outside)
    manager.close()
    root, url = manager.root, f"memory://{tmp_path.name}"
    fill(store, 2)
    with kvemb.CheckpointManager(tmp_path / "other") as other:
        other.save(store)
        other.save(store)
        other.push(url)
    for name in (".00000009.dropped", ".00000008.1-1.tmp", ".pulled"):
        (root / name).symlink_to(outside)
    os.rename(root / "00000001", outside.parent / "moved")
    (root / "00000001").symlink_to(outside.parent / "moved")
    with kvemb.CheckpointManager(root, keep=1) as again:
        assert kvemb.verify(again.pull(url), deep=True)
        again.save(store)
    assert sorted(path.name for path in root.iterdir()) == ["00000003", "LOCK"]
    assert kvemb.verify(outside.parent / "moved", deep=True)
    (root / "LOCK").unlink()
    (root / "LOCK").symlink_to(outside / "new")
    with pytest.raises(Corruption, match="LOCK is a symbolic link"):
        kvemb.CheckpointManager(root).save(store)
    assert contents(outside) == before


def test_what_was_pulled_in_part_is_looked_at_again(store, manager, tmp_path):
    """Of a file with the right name and size in the folder of what has come, nobody knows what it is."""
    url, root = f"memory://{tmp_path.name}", tmp_path / "copy"
    scratch = root / ".pulled"
    scratch.mkdir(parents=True)
    entries = {entry.sha256: entry for entry in manager.latest().inventory.values()}
    for number, entry in enumerate(entries.values()):
        (tmp_path / f"{number}").write_bytes(bytes(entry.bytes))
        (os.symlink if number % 2 else os.link)(tmp_path / f"{number}", scratch / entry.sha256)
    with kvemb.CheckpointManager(root) as copy:
        assert kvemb.verify(copy.pull(url), deep=True)


# More than was said.


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes have been read of files in memory."""
    from fsspec.implementations.memory import MemoryFile

    real, lock, total = MemoryFile.read, threading.Lock(), [0]

    def read(self: Any, *arguments: Any) -> bytes:
        data = real(self, *arguments)
        with lock:
            total[0] += len(data)
        return data

    monkeypatch.setattr(MemoryFile, "read", read, raising=False)
    return lambda: total[0]


def test_no_more_of_a_file_is_read_than_its_manifest_says(manager, tmp_path, counted):
    url = f"memory://{tmp_path.name}"
    files, root = fsspec.core.url_to_fs(url)
    entries = list(manager.latest().inventory.values())
    for entry in entries:
        path = f"{root}/files/{entry.sha256[:2]}/{entry.sha256}"
        files.pipe_file(path, files.cat_file(path) + bytes(8 << 20))
    with kvemb.CheckpointManager(tmp_path / "copy") as copy, pytest.raises(Corruption, match="is not what was pushed"):
        copy.pull(url)
    assert counted() <= sum(entry.bytes + 1 for entry in entries)
    assert not list((tmp_path / "copy").rglob("*.part"))
