"""Series of checkpoints: their numbers, one writer, and directories that are not series."""

from __future__ import annotations

import pytest
from versions import fill, make, rows_of

import kvemb
from kvemb.errors import Locked, TransferError

fsspec = pytest.importorskip("fsspec")


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


def test_one_process_writes_and_others_read(store, manager, tmp_path):
    fill(store, 1)
    manager.save(store)
    other = kvemb.CheckpointManager(manager.root)
    assert other.latest().id == manager.latest().id
    with pytest.raises(Locked, match=f"the series {manager.root} is written to already, by this process"):
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
        for call in (
            lambda wrong=wrong: wrong.pull(url),
            lambda wrong=wrong: wrong.save(store),
            lambda wrong=wrong: wrong.push(url),
        ):
            with pytest.raises((FileExistsError, ValueError), match=told):
                call()
        if "inside the checkpoint" not in told:
            with pytest.raises((FileExistsError, ValueError, TransferError), match=r"is a |is inside|exists|directory"):
                manager.push(root)
    assert sorted(tmp_path.rglob("*")) == before
