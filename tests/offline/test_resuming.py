"""Resuming: the store is that of the newest checkpoint, whatever was trained after it; nothing else is deleted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from quick import quick

import kvemb
from kvemb import opening
from kvemb.durability import layout
from kvemb.durability.installing import restoring
from kvemb.errors import ColdStoreError, Locked

BUDGET = {"memory_budget": "4MiB"}


def train(store: kvemb.Store, keys: list[int], value: float) -> None:
    store.get_variable("users", dim=2).upsert(keys, np.full((len(keys), 2), value, np.float32))


def rows(store: kvemb.Store) -> list[float]:
    return store.variables["users"].lookup([1, 2])[:, 0].tolist()


def test_training_goes_on_from_the_newest_checkpoint(tmp_path, manager):
    store, newest = manager.resume(tmp_path / "store", **BUDGET)
    assert newest is None
    train(store, [1], 1.0)
    manager.save(store, files={"model": b"1"}, extra={"step": 1})
    train(store, [2], 2.0)
    store.close()
    store, newest = manager.resume(tmp_path / "store", **BUDGET)
    with store:
        assert (rows(store), newest.files["model"].read_bytes(), newest.extra) == ([1.0, 0.0], b"1", {"step": 1})
        assert store.variables["users"].stats.rows_hot == 1, "the rows that were hot"
        train(store, [2], 3.0)
        manager.save(store, extra={"step": 2})
    store, newest = manager.resume(tmp_path / "store", warm=False, **BUDGET)
    with store:
        assert (rows(store), newest.extra, [*newest.files]) == ([1.0, 3.0], {"step": 2}, [])


def test_a_store_of_which_nothing_was_saved_is_kept_if_it_has_rows(tmp_path, manager):
    kvemb.open(tmp_path / "store", **BUDGET).close()
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    store.close()
    with pytest.raises(FileExistsError, match="has 1 row and the series has no checkpoint yet"):
        manager.resume(tmp_path / "store", **BUDGET)
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        assert rows(store) == [1.0, 0.0]


def test_another_store_or_an_open_one_is_not_deleted(tmp_path, manager):
    with kvemb.open(tmp_path / "other", **BUDGET) as other, kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        train(other, [1], 7.0)
        manager.save(store)
        with pytest.raises(Locked):
            manager.resume(tmp_path / "store", **BUDGET)
    with pytest.raises(FileExistsError, match="is not the store from which"):
        manager.resume(tmp_path / "other", **BUDGET)
    with kvemb.open(tmp_path / "other", **BUDGET) as other:
        assert rows(other) == [7.0, 0.0]
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        manager.resume(tmp_path / "files", **BUDGET)
    assert (tmp_path / "files" / "mine").exists()


@pytest.mark.parametrize("left", [["CURRENT", "live"], ["CURRENT", "LOCK"], ["CURRENT"]], ids=str)
def test_a_deletion_that_a_crash_interrupted_is_completed(tmp_path, manager, left):
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        manager.save(store)
    (tmp_path / "store" / "points").rename(tmp_path / "store" / "live")
    for entry in (tmp_path / "store").iterdir():
        if entry.name not in left:
            entry.rename(tmp_path / f"gone-{entry.name}")
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    with store:
        assert rows(store) == [1.0, 0.0]


KILLED = """
import os, sys
import kvemb
from kvemb.durability import layout

def end(*_, **__):
    os._exit(9)

setattr(layout, sys.argv[3], end)
kvemb.CheckpointManager(sys.argv[1]).resume(sys.argv[2], memory_budget="4MiB")
"""


@pytest.mark.parametrize("at", quick(["set_current", "unpack"]))
def test_training_goes_on_after_a_resume_that_was_killed(tmp_path, manager, at):
    with kvemb.open(tmp_path / "first", **BUDGET) as store:
        train(store, [1], 1.0)
        manager.save(store)
    where = [str(manager.root), str(tmp_path / "store")]
    ended = subprocess.run([sys.executable, "-c", KILLED, *where, at], check=False, timeout=300)
    assert ended.returncode == 9
    assert [entry.name for entry in (tmp_path / "store").iterdir()] == ["points"]
    with restoring(tmp_path / "store"), pytest.raises(Locked, match="another process is restoring"):
        manager.resume(tmp_path / "store", **BUDGET)
    store, newest = manager.resume(tmp_path / "store", **BUDGET)
    with store:
        assert newest is not None
        assert rows(store) == [1.0, 0.0]


def test_what_a_killed_restore_of_another_store_left_is_kept(tmp_path, manager):
    with kvemb.open(tmp_path / "other", **BUDGET) as store:
        train(store, [1], 1.0)
        store.checkpoint(tmp_path / "others")
    kvemb.restore(tmp_path / "others", tmp_path / "store", **BUDGET).close()
    for entry in ("CURRENT", "LOCK"):
        (tmp_path / "store" / entry).unlink()
    with pytest.raises(FileExistsError, match="has 1 row and the series has no checkpoint yet"):
        manager.resume(tmp_path / "store", **BUDGET)
    with kvemb.open(tmp_path / "mine", **BUDGET) as store:
        manager.save(store)
    with pytest.raises(FileExistsError, match="is not the store from which"):
        manager.resume(tmp_path / "store", **BUDGET)
    assert len(list((tmp_path / "store" / "points").iterdir())) == 1


def test_what_a_store_had_after_the_newest_checkpoint_is_deleted_with_a_warning(tmp_path, manager, caplog):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    saved = manager.save(store)
    store.close()
    manager.resume(tmp_path / "store", **BUDGET)[0].close()
    assert caplog.messages == [], "nothing changed"
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        store.variables["users"].remove([1])
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    with store:
        assert rows(store) == [1.0, 0.0]
    (told,) = caplog.messages
    assert f"{tmp_path / 'store'} goes back to {saved.path}: later changes, up to" in told


@pytest.mark.parametrize("during", ["the deletion", "the opening"])
def test_a_resume_that_could_not_delete_is_completed_by_another(tmp_path, manager, monkeypatch, during):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    manager.save(store)
    store.close()
    refuse = Mock(side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE)))

    def fail(path: Path, **options: Any) -> None:
        (path / layout.LIVE / layout.ROWS).mkdir(parents=True)
        monkeypatch.setattr(os, "rmdir", refuse)
        raise ColdStoreError("too few")

    if during == "the deletion":
        monkeypatch.setattr(os, "rmdir", refuse)
    else:
        monkeypatch.setattr(opening, "open", fail)
    with pytest.raises(ColdStoreError, match=r"too few|Too many open files"):
        manager.resume(tmp_path / "store", **BUDGET)
    monkeypatch.undo()
    with manager.resume(tmp_path / "store", **BUDGET)[0] as store:
        assert rows(store) == [1.0, 0.0]


def test_a_disk_that_does_no_more_than_delete_keeps_nothing_of_a_restore_that_failed(tmp_path, manager, monkeypatch):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    saved = manager.save(store)
    store.close()
    refuse = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))

    def fail(path: Path, **options: Any) -> None:
        monkeypatch.setattr(os, "rename", refuse)
        raise ColdStoreError("the disk")

    monkeypatch.setattr(opening, "open", fail)
    with pytest.raises(ColdStoreError, match="the disk"):
        kvemb.restore(saved, tmp_path / "restored", **BUDGET)
    assert not (tmp_path / "restored").exists()
