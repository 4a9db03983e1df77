"""Series of checkpoints: retention, one writer, and copies elsewhere, interrupted at every file."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quick import quick

import kvemb
from kvemb.durability import fresh_files, manifest, point_writer
from kvemb.errors import BackendUnavailable, CheckpointNotFound, ColdStoreError, Corruption, Locked, TransferError
from kvemb.handle import inside
from kvemb.offline import series
from kvemb.offline.transfer import Remote

fsspec = pytest.importorskip("fsspec")
DIM = 3


def fill(store: kvemb.Store, version: int, keys: Any = None) -> None:
    table = store.get_variable("table", dim=DIM, hot_rows=64)
    keys = np.arange(2000) if keys is None else np.asarray(keys)
    table.upsert(keys, np.full((len(keys), DIM), version, np.float32))


def rows_of(checkpoint: kvemb.Checkpoint) -> dict[int, float]:
    with kvemb.open(checkpoint, read_only=True, memory_budget="4MiB") as store:
        keys, values = store.variables["table"].export()
        return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[kvemb.CheckpointManager]:
    with kvemb.CheckpointManager(tmp_path / "series") as manager:
        yield manager


# On this machine.


def test_checkpoints_are_numbered_and_the_newest_is_the_latest(store, manager):
    assert (manager.latest(), manager.list(), repr(manager)) == (
        None,
        [],
        f"<kvemb.CheckpointManager {manager.root}: no checkpoint yet>",
    )
    for version in range(3):
        fill(store, version, [version])
        assert manager.save(store).path == manager.path(version + 1)
    assert manager.numbers() == [1, 2, 3]
    assert [checkpoint.path.name for checkpoint in manager.list()] == ["00000001", "00000002", "00000003"]
    assert manager.latest().id == manager.list()[-1].id
    assert rows_of(manager.latest()) == {0: 0.0, 1: 1.0, 2: 2.0}
    assert "3 checkpoints, the newest 00000003" in repr(manager)


def test_what_is_dropped_takes_nothing_from_what_stays(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=2) as manager:
        for version in range(5):
            fill(store, version, np.arange(version * 1000, version * 1000 + 1000))
            manager.save(store)
            assert manager.numbers() == [n for n in (version, version + 1) if n]
        assert sorted(path.name for path in manager.root.iterdir()) == ["00000004", "00000005", "LOCK"]
        files = [{(file.stat().st_ino) for file in each.path.glob("rows/*.sst")} for each in manager.list()]
        assert files[0] & files[1], "unchanged files are shared"
        for number, checkpoint in zip((4, 5), manager.list(), strict=True):
            assert kvemb.verify(checkpoint.path, deep=True)
            assert len(rows_of(checkpoint)) == 1000 * number
        assert sum(len(change.keys) for change in manager.list()[1].changes(manager.list()[0])) == 1000


def test_saving_behind_keeps_as_many_as_saving_does(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=2) as manager:
        for version in range(5):
            fill(store, version)
            assert manager.save(store, block=False).result().path == manager.path(version + 1)
            assert manager.numbers() == [n for n in (version, version + 1) if n]
        fill(store, 9)
        pending = manager.save(store, block=False)
        while manager.numbers() != [5, 6]:  # nobody asks for the result
            assert not pending.reported


def test_what_a_save_behind_failed_with_is_raised_by_the_next(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, 1)
    manager = kvemb.CheckpointManager(tmp_path / "series")

    def refuse(*args: Any) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(fresh_files, "sync_tree", refuse)
        pending = manager.save(store, block=False)
        while not pending.done():
            pass
    with pytest.raises(kvemb.KvembError):
        manager.save(store)
    assert manager.numbers() == []
    manager.close()


def test_a_save_behind_tells_how_far_it_is(monkeypatch, store, tmp_path):
    fill(store, 1)
    going = threading.Event()
    link = point_writer.PointWriter._write_checkpoint

    def waiting(self, target):
        assert going.wait(60)
        if target.name == "broken":
            raise point_writer.TargetFailed(FileExistsError("it is there"))
        link(self, target)

    monkeypatch.setattr(point_writer.PointWriter, "_write_checkpoint", waiting)
    with kvemb.CheckpointManager(tmp_path / "series") as manager:
        pending = manager.save(store, block=False)
        assert repr(pending) == "<kvemb.PendingCheckpoint being written>"
        going.set()
        saved = pending.result()
        assert repr(pending) == f"<kvemb.PendingCheckpoint complete: {saved.path}>"
    failing = store.checkpoint(tmp_path / "broken", block=False)
    with pytest.raises(FileExistsError):
        failing.result()
    assert repr(failing) == "<kvemb.PendingCheckpoint failed: it is there>"


def test_a_save_is_due_when_time_has_gone(monkeypatch, store, tmp_path):
    now = 1_000_000.0
    monkeypatch.setattr(series.time, "time", lambda: now)
    manager = kvemb.CheckpointManager(tmp_path / "series", every=60)
    fill(store, 1)
    manager.save_if_due(store).result()
    now += 59
    assert manager.save_if_due(store) is None
    now += 1
    assert manager.save_if_due(store, block=True).path == manager.path(2)
    manager.close()
    # Another process goes on from when the newest was made.
    made = now
    monkeypatch.setattr(kvemb.Checkpoint, "created", property(lambda self: made))
    with kvemb.CheckpointManager(tmp_path / "series", every=60) as again:
        now += 30
        assert again.save_if_due(store) is None
        now += 30
        again.save_if_due(store).result()
        assert again.numbers() == [1, 2, 3]


def test_arguments_are_checked(store, tmp_path):
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="keep must be"):
            kvemb.CheckpointManager(tmp_path / "series", keep=wrong)
    for every in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="every must be a number of seconds above 0"):
            kvemb.CheckpointManager(tmp_path / "series", every=every)
    with pytest.raises(ValueError, match="made with every="):
        kvemb.CheckpointManager(tmp_path / "series").save_if_due(store)
    assert not (tmp_path / "series").exists()


def test_one_process_writes_and_others_read(store, manager, tmp_path):
    fill(store, 1)
    manager.save(store)
    other = kvemb.CheckpointManager(manager.root)
    assert other.latest().id == manager.latest().id
    with pytest.raises(Locked, match=f"the series {manager.root} is written to elsewhere"):
        other.save(store)
    other.push(str(tmp_path / "elsewhere"))
    with pytest.raises(Locked, match="close it there"):
        other.pull(str(tmp_path / "elsewhere"))
    manager.close()
    assert other.save(store).path == manager.path(2)
    other.close()
    manager.close()


def test_what_a_crash_left_goes_and_is_never_listed(store, manager):
    for name in (".00000003.123-1.tmp", ".00000001.dropped", ".ssh", ".git", "1"):
        (manager.root / name / "rows").mkdir(parents=True)
    store.checkpoint(manager.root / "7")  # a user's own name, which is no number of the series
    (manager.root / "00000007" / "rows").mkdir(parents=True)  # not complete: it has no manifest
    (manager.root / "notes.txt").touch()
    assert manager.numbers() == []
    fill(store, 1)
    assert manager.save(store).path.name == "00000001"
    assert sorted(path.name for path in manager.root.iterdir()) == [
        *(".git", ".ssh", "00000001", "00000007", "1", "7", "LOCK", "notes.txt"),
    ]


def test_a_checkpoint_of_that_name_is_not_written_over(store, manager):
    fill(store, 1)
    manager.save(store)
    (manager.root / "00000002").mkdir()
    with pytest.raises(FileExistsError, match="00000002 exists"):
        manager.save(store)
    fill(store, 2)
    store.flush()


def test_a_reader_of_a_checkpoint_that_is_dropped_reads_on(store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as manager:
        fill(store, 1)
        reader = kvemb.open(manager.save(store), read_only=True, memory_budget="4MiB")
        fill(store, 2)
        manager.save(store)
        assert set(reader.variables["table"].export()[1].ravel().tolist()) == {1.0}
        reader.close()


# Elsewhere.


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """A real S3 server on this machine, with an empty bucket."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield options
    server.stop()


@pytest.fixture(params=quick(["local", "memory", "s3"], 2))
def place(request, tmp_path) -> tuple[str, dict[str, Any] | None]:
    """A URL where nothing is yet, and the options to reach it."""
    if request.param == "local":
        return str(tmp_path / "remote"), None
    if request.param == "memory":
        return f"memory://{tmp_path.name}", None
    return f"s3://bucket/{tmp_path.name}", request.getfixturevalue("s3")


def make(store: kvemb.Store, manager: kvemb.CheckpointManager, count: int) -> builtins.list[kvemb.Checkpoint]:
    made = []
    for version in range(count):
        fill(store, version, np.arange(version * 1000, version * 1000 + 1000))
        made.append(manager.save(store))
    return made


def test_a_series_travels_and_only_what_lacks_does(store, manager, tmp_path, place):
    url, options = place
    made = make(store, manager, 3)
    assert manager.remote_numbers(url, options=options) == []
    seen: set[str] = set()
    for number, checkpoint in enumerate(made, 1):
        told: builtins.list[tuple[int, int]] = []
        done = manager.push(
            url, number=number, options=options, progress=lambda *bytes_, told=told: told.append(bytes_)
        )
        new = {entry.sha256: entry.bytes for entry in checkpoint.files.values() if entry.sha256 not in seen}
        assert (done.number, done.files, done.nbytes) == (number, len(new), sum(new.values()))
        assert told[-1] == (done.nbytes, done.nbytes)
        assert done.shared == len({entry.sha256 for entry in checkpoint.files.values()} & seen)
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
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], builtins.list[str]]:
    """Make the n-th call of a method of the filesystem in memory fail; returns the list of all its calls."""
    from fsspec.implementations.memory import MemoryFileSystem

    def fail(name: str, at: int) -> builtins.list[str]:
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
    whole = manager.push(url).files
    assert whole > 5
    assert len(calls) == whole + 1, "the manifest is the last"
    for at in range(1, whole + 1):
        url = f"memory://{tmp_path.name}-{at}"
        manager.push(url, number=1)
        calls = failing("open", at)
        with pytest.raises(TransferError, match="the network is gone; files already transferred are kept: call again"):
            manager.push(url, jobs=1)
        assert len(calls) == at
        assert manager.remote_numbers(url) == [1]
        calls = failing("open", 0)
        assert manager.push(url).files == whole - at + 1
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
    assert manager.push(url).files == 0
    assert manager.remote_numbers(url) == [2]


def test_an_interrupted_pull_shows_nothing_and_the_next_goes_on(failing, store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 1)
    manager.push(url)
    whole = len({entry.sha256 for entry in manager.latest().files.values()})
    for at in range(1, whole + 1):
        with kvemb.CheckpointManager(tmp_path / f"copy{at}") as copy:
            failing("open", at + 1)  # the manifest is the first
            with pytest.raises(TransferError, match="the network is gone"):
                copy.pull(url, jobs=1)
            assert copy.numbers() == []
        with kvemb.CheckpointManager(tmp_path / f"copy{at}") as copy:
            calls = failing("open", 0)
            assert kvemb.verify(copy.pull(url).path, deep=True)
            assert len(calls) == whole - at + 2
            assert sorted(path.name for path in copy.root.iterdir()) == ["00000001", "LOCK"]


def file_there(url: str, checkpoint: kvemb.Checkpoint) -> tuple[Any, str, bytes]:
    """A table file of a checkpoint at a URL in memory: the filesystem, its path there, its bytes."""
    files, root = fsspec.core.url_to_fs(url)
    tables = [entry for name, entry in checkpoint.files.items() if name.endswith(".sst")]
    entry = max(tables, key=lambda table: table.bytes)
    path = f"{root}/files/{entry.sha256[:2]}/{entry.sha256}"
    return files, path, files.cat_file(path)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_a_damaged_file_elsewhere_is_named_and_nothing_is_pulled(store, manager, tmp_path, how):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 1)
    manager.push(url)
    files, path, data = file_there(url, manager.latest())
    files.rm_file(path)
    if how != "missing":
        files.pipe_file(path, data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        with pytest.raises(Corruption, match=path.rpartition("/")[2]):
            copy.pull(url)
        assert copy.numbers() == []
    if how == "cut":
        # A push that was interrupted may leave this: the next one puts the whole file there.
        files.rm_file(f"{fsspec.core.url_to_fs(url)[1]}/checkpoints/00000001.json")
        assert manager.push(url).files == 1


def test_a_damaged_or_hostile_manifest_elsewhere_is_refused(store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    (checkpoint,) = make(store, manager, 1)
    manager.push(url)
    files, root = fsspec.core.url_to_fs(url)
    path = f"{root}/checkpoints/00000001.json"
    text = files.cat_file(path)
    described = inside(checkpoint)
    name = next(iter(described.files))
    for strange in ("../../escaped", "/escaped", "rows/../../escaped"):
        described.files[strange] = described.files.pop(name)
        manifest.write(described, tmp_path)
        files.pipe_file(path, (tmp_path / manifest.NAME).read_bytes())
        described.files[name] = described.files.pop(strange)
        with (
            kvemb.CheckpointManager(tmp_path / "copy") as copy,
            pytest.raises(Corruption, match=r"no file that a checkpoint|paths below the directory"),
        ):
            copy.pull(url)
    for sha256 in ("../../escaped", "", "x" * 64, None, 7):
        entry = described.files[name]
        described.files[name] = manifest.FileEntry(entry.bytes, sha256)
        manifest.write(described, tmp_path)
        files.pipe_file(path, (tmp_path / manifest.NAME).read_bytes())
        described.files[name] = entry
        with (
            kvemb.CheckpointManager(tmp_path / "copy") as copy,
            pytest.raises(Corruption, match="must be 64 hexadecimal digits"),
        ):
            copy.pull(url)
    for damaged in (text[:-2], b"\xff" + text[1:], text.replace(b'"rows": 1000', b'"rows": 1001')):
        files.pipe_file(path, damaged)
        with kvemb.CheckpointManager(tmp_path / "copy") as copy, pytest.raises(Corruption, match=r"00000001\.json"):
            copy.pull(url)
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]


def test_another_checkpoint_of_the_number_is_not_replaced(open_store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    with kvemb.CheckpointManager(tmp_path / "other") as other:
        for name, each in (("store", manager), ("second", other)):
            make(open_store(tmp_path / name), each, 1)
        manager.push(url)
        with pytest.raises(FileExistsError, match="another checkpoint 00000001"):
            other.push(url)
        with pytest.raises(FileExistsError, match="pull into another root"):
            other.pull(url)
        assert manager.push(url).files == 0


def test_pruning_elsewhere_keeps_what_others_need(store, manager, tmp_path, place):
    url, options = place
    made = make(store, manager, 4)
    for number in (1, 2, 3):
        manager.push(url, number=number, options=options)
    manager.push(url, keep=2, options=options)
    assert manager.remote_numbers(url, options=options) == [3, 4]
    needed = {entry.sha256 for checkpoint in made[2:] for entry in checkpoint.files.values()}
    assert {Path(path).name for path in Remote(url, options)._found("files")} == needed
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        for number in (3, 4):
            assert kvemb.verify(copy.pull(url, number=number, options=options).path, deep=True)
        with pytest.raises(CheckpointNotFound, match=r"there is no checkpoint 1 in .*; it has 3, 4"):
            copy.pull(url, number=1, options=options)


@pytest.mark.parametrize("how", ["flipped", "cut", "longer", "empty", "missing"])
@pytest.mark.parametrize("kind", ["*.sst", "MANIFEST-*"])
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
    entry = checkpoint.files[name]
    assert there.get(entry.sha256) != entry.bytes, "what is there with the right size is right"
    path.write_bytes(data)
    assert manager.push(url, options=options).number == 1
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        assert kvemb.verify(copy.pull(url, options=options), deep=True)


def test_a_file_of_the_wrong_size_elsewhere_is_replaced_by_every_push(store, manager, tmp_path, place):
    url, options = place
    made = make(store, manager, 2)
    manager.push(url, number=1, options=options)
    files, root = fsspec.core.url_to_fs(url, **(options or {}))
    shared = {entry.sha256 for entry in made[0].files.values()} & {entry.sha256 for entry in made[1].files.values()}
    path = f"{root}/files/{min(shared)[:2]}/{min(shared)}"
    for number in (1, 2, 2):
        files.pipe_file(path, files.cat_file(path)[:-1] + b"more")
        told: builtins.list[tuple[int, int]] = []
        done = manager.push(
            url, number=number, options=options, progress=lambda *bytes_, told=told: told.append(bytes_)
        )
        assert (done.files >= 1, told[-1]) == (True, (done.nbytes, done.nbytes))
        with kvemb.CheckpointManager(tmp_path / f"copy{len(list(tmp_path.glob('copy*')))}") as copy:
            assert kvemb.verify(copy.pull(url, number=number, options=options), deep=True)


def test_what_changed_elsewhere_is_found_and_replaced_when_asked(store, manager, tmp_path, place):
    url, options = place
    made = make(store, manager, 2)
    manager.push(url, number=1, options=options)
    files, root = fsspec.core.url_to_fs(url, **(options or {}))
    shared = {entry.sha256 for entry in made[0].files.values()} & {entry.sha256 for entry in made[1].files.values()}
    path = f"{root}/files/{min(shared)[:2]}/{min(shared)}"
    sound = files.cat_file(path)
    for number in (1, 2):
        files.pipe_file(path, sound[:-1] + bytes([sound[-1] ^ 1]))
        with kvemb.CheckpointManager(tmp_path / f"copy{number}") as copy:
            with pytest.raises(Corruption, match=r"is damaged.*push checkpoint 1 again with verify=True"):
                copy.pull(url, number=1, options=options)
            told: builtins.list[tuple[int, int]] = []
            done = manager.push(
                url, number=number, options=options, verify=True, progress=lambda *seen, told=told: told.append(seen)
            )
            assert done.files == 1 if number == 1 else done.files > 1
            whole = sum({entry.sha256: entry.bytes for entry in made[number - 1].files.values()}.values())
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


def test_only_names_of_checkpoints_count_elsewhere(store, manager, tmp_path):
    make(store, manager, 1)
    url = tmp_path / "remote"
    manager.push(url)
    for name in (
        "7.json",
        "0000000\u0667.json",
        "00000009.json.part",
        "9" * 200 + ".json",
        "a/00000005.json",
        "x.json",
    ):
        (url / "checkpoints" / name).parent.mkdir(exist_ok=True)
        (url / "checkpoints" / name).touch()
    assert manager.remote_numbers(url) == [1]


def test_a_bucket_that_is_not_there_is_told_and_not_made(s3, store, manager, tmp_path):
    make(store, manager, 1)
    files = fsspec.filesystem("s3", **s3)
    for url in ("s3://typo", "s3://typo/model"):
        for call in (manager.push, manager.pull, manager.remote_numbers):
            with pytest.raises(TransferError, match=r"there is no bucket 'typo', which s3://typo.* names"):
                call(url, options=s3)
    assert not files.exists("typo")
    assert manager.remote_numbers("s3://bucket/nothing/yet", options=s3) == []


def test_a_place_that_is_none_is_told(s3, store, manager, tmp_path, monkeypatch):
    make(store, manager, 1)
    monkeypatch.chdir(tmp_path)
    for call in (manager.push, manager.pull, manager.remote_numbers):
        for url in ("s3:///x", "s3://", "s3:///"):
            with pytest.raises(ValueError, match=rf"url '{url}' names no bucket, or host; write s3://NAME"):
                call(url, options=s3)
        with pytest.raises(ValueError, match="one slash after its colon"):
            call(Path("s3://bucket/x"), options=s3)
        with pytest.raises(ValueError, match="url must not be empty or contain a null character"):
            call("")
        for strange in (7, None, b"remote"):
            with pytest.raises(TypeError, match="url must be a str or a path, got"):
                call(strange)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["series", "store"]
    done = manager.push(Path("remote"))
    assert manager.remote_numbers(Path("remote/")) == [done.number]
    with kvemb.CheckpointManager("copy") as copy:
        assert copy.pull(tmp_path / "remote").id == manager.latest().id


def test_a_store_or_a_checkpoint_is_no_place_for_a_series(open_store, manager, tmp_path):
    store = open_store(tmp_path / "store")
    (checkpoint,) = make(store, manager, 1)
    url = str(tmp_path / "remote")
    manager.push(url)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    for root, told in (
        (tmp_path / "store", "is a store, not a series of checkpoints; name another directory"),
        (checkpoint.path, "is a checkpoint, not a series of checkpoints; name another directory"),
        (tmp_path / "file", "is a file, not a series of checkpoints; name a directory"),
        (tmp_path / "store" / "points", "is inside the store"),
        (tmp_path / "store" / "new", "is inside the store"),
        (checkpoint.path / "rows", "is inside the checkpoint"),
        (checkpoint.path / "new", "is inside the checkpoint"),
    ):
        wrong = kvemb.CheckpointManager(root)
        for call in (lambda wrong=wrong: wrong.pull(url), lambda wrong=wrong: wrong.save(store)):
            with pytest.raises((FileExistsError, ValueError), match=told):
                call()
        if "inside the checkpoint" not in told:
            with pytest.raises((FileExistsError, ValueError, TransferError), match=r"is a |is inside|exists|directory"):
                manager.push(root)
    with pytest.raises(CheckpointNotFound, match="is a store, not a series of checkpoints"):
        kvemb.CheckpointManager(tmp_path / "store").push(url)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_cannot_be_reached_is_told(monkeypatch, store, manager, tmp_path):
    with pytest.raises(CheckpointNotFound, match=r"there is no checkpoint in .*; it has none"):
        manager.push(f"memory://{tmp_path.name}")
    make(store, manager, 1)
    with pytest.raises(TransferError, match="nowhere"):
        manager.push("nowhere://x")
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match="file"):
        manager.push(str(tmp_path / "file"))
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'kvemb\[remote\]'"):
        manager.push("memory://x")


def test_a_full_disk_leaves_no_checkpoint(monkeypatch, store, manager, tmp_path):
    url = f"memory://{tmp_path.name}"
    make(store, manager, 1)
    manager.push(url)

    def full(*args: Any) -> None:
        raise OSError(28, os.strerror(28))

    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        with monkeypatch.context() as patch:
            patch.setattr(fresh_files, "link_or_copy", full)
            with pytest.raises(ColdStoreError, match="No space left"):
                copy.pull(url)
        assert copy.numbers() == []
        assert kvemb.verify(copy.pull(url).path, deep=True)
