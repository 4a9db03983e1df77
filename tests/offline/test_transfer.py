"""Copies of checkpoints elsewhere: pushed, pulled and pruned, interrupted at every file, damaged on either side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from versions import fill, make, rows_of

import kvemb
from kvemb import fresh_files
from kvemb.backends.rocks_store import RocksStore
from kvemb.durability import manifest
from kvemb.errors import CheckpointNotFound, ColdStoreError, Corruption, TransferError
from kvemb.offline import streams
from kvemb.offline.remote_checking import RemoteChecking
from kvemb.offline.transfer import Remote

fsspec = pytest.importorskip("fsspec")


def test_a_series_travels_and_only_what_lacks_does(store, manager, tmp_path, place):
    url, options = place
    made = make(store, manager, 3)
    assert manager.remote_numbers(url, options=options) == []
    seen: set[str] = set()
    for number, checkpoint in enumerate(made, 1):
        told: list[tuple[int, int]] = []
        done = manager.push(
            url, number=number, whole=True, options=options, progress=lambda *bytes_, told=told: told.append(bytes_)
        )
        new = {entry.sha256: entry.bytes for entry in checkpoint.inventory.values() if entry.sha256 not in seen}
        assert (done.number, done.files, done.nbytes) == (number, len(new), sum(new.values()))
        assert told[-1] == (done.nbytes, done.nbytes)
        assert done.shared == len({entry.sha256 for entry in checkpoint.inventory.values()} & seen)
        assert (done.shared > 0) == (number > 1)
        seen |= set(new)
    assert manager.remote_numbers(url, options=options) == [1, 2, 3]
    assert manager.push(url, options=options).files == 0

    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        assert copy.pull(url, number=2, options=options).path == copy.path(2)
        newest = copy.pull(url, options=options)
        assert copy.pull(url, options=options).path == newest.path
        assert copy.numbers() == [2, 3]
        for checkpoint in copy.list():
            assert kvemb.verify(checkpoint.path, deep=True)
            original = manager.path(int(checkpoint.path.name))
            assert (checkpoint.path / manifest.NAME).read_bytes() == (original / manifest.NAME).read_bytes()
            assert rows_of(checkpoint) == rows_of(kvemb.Checkpoint(original))
        inodes = [{file.stat().st_ino for file in each.path.rglob("*") if file.is_file()} for each in copy.list()]
        assert inodes[0] & inodes[1], "what is here does not travel"
        assert sum(len(change.keys) for change in newest.changes(copy.path(2))) == 1000
        with kvemb.restore(newest, tmp_path / "restored", memory_budget="4MiB") as restored:
            fill(restored, 9, [1])
            assert copy.save(restored).path == copy.path(4)
            assert copy.push(url, options=options).shared > 0
    assert manager.remote_numbers(url, options=options) == [1, 2, 3, 4]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], list[str]]:
    """Make the n-th call of a method of the filesystem in memory fail; returns the list of all its calls."""
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(name: str, at: int) -> list[str]:
        monkeypatch.undo()
        real, calls, lock = getattr(MemoryFileSystem, name), [], threading.Lock()

        def call(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            with lock:
                calls.append(path)
                failing = len(calls) == at
            if failing:
                raise OSError("the network is gone")
            return real(self, path, *args, **kwargs)

        monkeypatch.setattr(MemoryFileSystem, name, call)
        return calls

    return fail


def test_an_interrupted_push_shows_nothing_and_the_next_goes_on(failing, store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 2)
    manager.push(url, number=1)
    calls = failing("open", 0)
    whole = manager.push(url, whole=True).files
    assert whole == 5
    assert len(calls) == whole + 1, "the manifest is the last"
    for at in range(1, whole + 1):
        url = f"memory://{tmp_path.name}-{at}"
        manager.push(url, number=1)
        calls = failing("open", at)
        with pytest.raises(TransferError, match="the network is gone; files already transferred are kept: call again"):
            manager.push(url, whole=True, jobs=1)
        assert len(calls) == at
        assert manager.remote_numbers(url) == [1]
        calls = failing("open", 0)
        assert manager.push(url, whole=True).files == whole - at + 1
        assert manager.remote_numbers(url) == [1, 2]
    # And with the manifest alone, the last file that is opened there.
    calls = failing("open", 0)
    manager.push(f"memory://{tmp_path.name}-counted")
    url = f"memory://{tmp_path.name}-last"
    failing("open", len(calls))
    with pytest.raises(TransferError, match="the network is gone"):
        manager.push(url)
    assert manager.remote_numbers(url) == []
    failing("open", 0)
    assert manager.push(url, whole=True).files == 0
    assert manager.remote_numbers(url) == [2]


def test_an_interrupted_pull_shows_nothing_and_the_next_goes_on(failing, store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 1)
    manager.push(url)
    whole = len({entry.sha256 for entry in manager.latest().inventory.values()})
    for at in range(1, whole + 1):
        with kvemb.CheckpointManager(tmp_path / f"copy{at}") as copy:
            failing("open", at)
            with pytest.raises(TransferError, match="the network is gone"):
                copy.pull(url, jobs=1)
            assert copy.numbers() == []
        with kvemb.CheckpointManager(tmp_path / f"copy{at}") as copy:
            calls = failing("open", 0)
            assert kvemb.verify(copy.pull(url).path, deep=True)
            assert len(calls) == whole - at + 1
            assert sorted(path.name for path in copy.root.iterdir()) == ["00000001", "LOCK"]


def test_another_checkpoint_of_the_number_is_not_replaced(open_store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    with kvemb.CheckpointManager(tmp_path / "other") as other:
        for name, each in (("store", manager), ("second", other)):
            make(open_store(tmp_path / name), each, 1)
        manager.push(url)
        with pytest.raises(FileExistsError, match="another checkpoint 00000001"):
            other.push(url, take_over=True)
        with pytest.raises(FileExistsError, match="pull into another root"):
            other.pull(url)
        assert manager.push(url).files == 0


@pytest.mark.parametrize("name", ["receive", "matches"])
def test_a_checkpoint_that_is_deleted_elsewhere_while_it_is_read_is_not_called_damaged(
    monkeypatch, store, manager, tmp_path, name
):
    """A push with keep= deletes beside readers, which were told to push it again, and verify found damage."""
    url = str(tmp_path / "remote")
    make(store, manager, 2)
    for number in (1, 2):
        manager.push(url, number=number, whole=True)
    real, first = getattr(streams, name), threading.Lock()

    def deleting(*arguments: Any) -> Any:
        with first:
            Remote(url).prune(1, store.id)
        return real(*arguments)

    monkeypatch.setattr(streams, name, deleting)
    if name == "matches":
        found = kvemb.verify(url, deep=True)
        assert found
        assert "00000001" not in str(found)
        return
    with kvemb.CheckpointManager(tmp_path / "other") as other, pytest.raises(CheckpointNotFound, match="was deleted"):
        other.pull(url, number=1)


@pytest.mark.parametrize("number", [1, None])
def test_what_is_verified_by_its_number_is_not_sound_once_it_is_deleted(monkeypatch, store, manager, tmp_path, number):
    url = str(tmp_path / "remote")
    make(store, manager, 2)
    for each in (1, 2):
        manager.push(url, number=each, whole=True)
    checking = RemoteChecking(url)
    real = checking._found

    def deleting(folder: str) -> Any:
        if folder == "files":
            Remote(url).prune(1, store.id)
        return real(folder)

    monkeypatch.setattr(checking, "_found", deleting)
    if number is None:
        checked = checking.check(deep=False)
        assert (checked.findings, checked.sound) == ([], [2])
    else:
        with pytest.raises(CheckpointNotFound, match=r"00000001 at .* was deleted while it was read"):
            checking.check(number=number, deep=False)


HARM = [(kind, how) for kind in ("*.sst", "MANIFEST-*") for how in ("flipped", "cut", "longer", "empty", "missing")]


@pytest.mark.independent
@pytest.mark.parametrize(
    ("place", "kind", "how"),
    [
        *(("local", *harm) for harm in HARM),
        ("memory", *HARM[0]),
        *(pytest.param("s3", *harm, marks=pytest.mark.slow) for harm in HARM[:2]),
    ],
    indirect=["place"],
)
def test_a_damaged_file_here_is_not_pushed(store, manager, tmp_path, place, how, kind):
    url, options = place
    (checkpoint,) = make(store, manager, 1)
    path = max(checkpoint.path.glob(f"rows/{kind}"))
    name = path.relative_to(checkpoint.path).as_posix()
    data = path.read_bytes()
    path.unlink()  # the store has links of its own
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    if how != "missing":
        path.write_bytes({"flipped": flipped, "cut": data[:-1], "longer": data + b"x", "empty": b""}[how])
    with pytest.raises(Corruption, match=str(path)):
        manager.push(url, options=options)
    assert manager.remote_numbers(url, options=options) == []
    there = {Path(each).name: known["size"] for each, known in Remote(url, options)._found("files").items()}
    entry = checkpoint.inventory[name]
    assert there.get(entry.sha256) != entry.bytes, "what is there with the right size is right"
    path.write_bytes(data)
    assert manager.push(url, options=options).number == 1
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        assert kvemb.verify(copy.pull(url, options=options), deep=True)


@pytest.fixture
def shared(store, manager, place) -> tuple[list[kvemb.Checkpoint], Any, str]:
    """Two checkpoints, the first of which is pushed: they, the filesystem, and the path there of a file of both."""
    url, options = place
    made = make(store, manager, 2)
    manager.push(url, number=1, options=options)
    files, root = fsspec.core.url_to_fs(url, **(options or {}))
    one, other = ({entry.sha256 for entry in each.inventory.values()} for each in made)
    return made, files, f"{root}/files/{min(one & other)[:2]}/{min(one & other)}"


def test_a_file_of_the_wrong_size_elsewhere_is_replaced_by_every_push(shared, manager, tmp_path, place):
    (url, options), (_, files, path) = place, shared
    for number in (1, 2, 2):
        files.pipe_file(path, files.cat_file(path)[:-1] + b"more")
        told: list[tuple[int, int]] = []
        done = manager.push(
            url, number=number, options=options, progress=lambda *bytes_, told=told: told.append(bytes_)
        )
        assert (done.files >= 1, told[-1]) == (True, (done.nbytes, done.nbytes))
        with kvemb.CheckpointManager(tmp_path / f"copy{len(list(tmp_path.glob('copy*')))}") as copy:
            assert kvemb.verify(copy.pull(url, number=number, options=options), deep=True)


def test_what_changed_elsewhere_is_found_and_replaced_when_asked(shared, manager, tmp_path, place):
    (url, options), (made, files, path) = place, shared
    sound = files.cat_file(path)
    for number in (1, 2):
        files.pipe_file(path, sound[:-1] + bytes([sound[-1] ^ 1]))
        with kvemb.CheckpointManager(tmp_path / f"copy{number}") as copy:
            with pytest.raises(Corruption, match=r"is damaged.*push checkpoint 1 again with verify"):
                copy.pull(url, number=1, options=options)
            told: list[tuple[int, int]] = []
            tell = {"options": options, "progress": lambda *seen, told=told: told.append(seen)}
            done = manager.push(url, number=number, verify=True, whole=True, **tell)
            assert done.files == 1 if number == 1 else done.files > 1
            whole = sum({entry.sha256: entry.bytes for entry in made[number - 1].inventory.values()}.values())
            assert told[-1] == (whole, whole)
            assert files.cat_file(path) == sound
            for each in range(1, number + 1):
                assert kvemb.verify(copy.pull(url, number=each, options=options), deep=True)
        assert manager.push(url, number=number, options=options, verify=True).files == 0


def test_what_is_replaced_elsewhere_is_not_written_through(store, manager, tmp_path):
    """A place elsewhere that is a folder may share its files with a copy of it."""
    make(store, manager, 1)
    url = tmp_path / "remote"
    manager.push(url)
    path = max(url.glob("files/*/*"), key=lambda path: path.stat().st_size)
    path.write_bytes(b"damaged")
    os.link(path, tmp_path / "link")
    assert manager.push(url).files == 1
    assert (tmp_path / "link").read_bytes() == b"damaged"


def test_a_damaged_manifest_elsewhere_is_pushed_again(store, manager, tmp_path, place):
    url, options = place
    make(store, manager, 1)
    manager.push(url, options=options)
    files, root = fsspec.core.url_to_fs(url, **(options or {}))
    path = f"{root}/checkpoints/00000001.json"
    text = files.cat_file(path)
    for damaged in (b"", text[:-3], text.replace(b"1000", b"1001")):
        files.pipe_file(path, damaged)
        with (
            kvemb.CheckpointManager(tmp_path / "copy") as copy,
            pytest.raises(Corruption, match=r"00000001\.json is damaged"),
        ):
            copy.pull(url, options=options)
        assert manager.push(url, options=options).files == 0
        assert files.cat_file(path) == text
    assert [Path(each).name for each in files.find(f"{root}/checkpoints")] == ["00000001.json"]


def test_a_pull_whose_merging_failed_is_repeated(monkeypatch, store, manager, tmp_path):
    """A table file that RocksDB did not take once made every later pull fail: its link was there."""
    url = str(tmp_path / "url")
    table = store.get_variable("table", dim=4)
    table.upsert(np.arange(2000), np.ones((2000, 4), np.float32))
    manager.save(store)
    manager.push(url)
    table.upsert([7], np.zeros((1, 4), np.float32))
    saved = manager.save(store)
    assert manager.push(url).deltas == 1
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        copy.pull(url, number=1)
        with monkeypatch.context() as patch:
            patch.setattr(RocksStore, "ingest", Mock(side_effect=OSError(28, os.strerror(28))))
            with pytest.raises(ColdStoreError, match="No space left"):
                copy.pull(url)
        assert copy.numbers() == [1]
        pulled = copy.pull(url)
        assert kvemb.verify(pulled.path, deep=True)
        assert rows_of(pulled) == rows_of(saved)
        (copy.root / ".pulled").mkdir()  # as a kill at the end of a pull leaves it
        assert copy.pull(url).path == pulled.path
    assert sorted(path.name for path in copy.root.iterdir()) == ["00000001", "00000002", "LOCK"]


def test_a_full_disk_leaves_no_checkpoint(monkeypatch, store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 1)
    manager.push(url)
    full = Mock(side_effect=OSError(28, os.strerror(28)))
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        with monkeypatch.context() as patch:
            patch.setattr(fresh_files, "link_or_copy", full)
            with pytest.raises(ColdStoreError, match="No space left"):
                copy.pull(url)
        assert copy.numbers() == []
        assert kvemb.verify(copy.pull(url).path, deep=True)
