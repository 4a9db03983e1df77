"""Resuming: the store is that of the newest checkpoint, whatever was trained after it; nothing else is deleted."""

from __future__ import annotations

import errno
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from crashes import copy_of_open, killed_at_each
from quick import quick

import kvemb
from kvemb import opening
from kvemb.durability import layout
from kvemb.durability.installing import restoring
from kvemb.engine.engine import Engine
from kvemb.errors import CheckpointNotFound, ColdStoreError, Corruption, Locked, StoreNotFound

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


@pytest.mark.slow
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


def test_a_resume_that_could_not_open_the_store_leaves_it_whole_for_another(tmp_path, manager, monkeypatch):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    manager.save(store)
    store.close()
    monkeypatch.setattr(opening, "open_at", Mock(side_effect=ColdStoreError("too few")))
    with pytest.raises(ColdStoreError, match="too few"):
        manager.resume(tmp_path / "store", **BUDGET)
    monkeypatch.undo()
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        assert rows(store) == [1.0, 0.0]
    with manager.resume(tmp_path / "store", **BUDGET)[0] as store:
        assert rows(store) == [1.0, 0.0]


def test_a_store_whose_deletion_by_an_earlier_version_was_killed_is_replaced(tmp_path, manager):
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        manager.save(store)
    (tmp_path / "store" / "points").rename(tmp_path / "store" / "live")
    with pytest.raises(Corruption, match=r"its deletion by .* was interrupted; call resume again"):
        kvemb.open(tmp_path / "store", **BUDGET)
    with manager.resume(tmp_path / "store", **BUDGET)[0] as store:
        assert rows(store) == [1.0, 0.0]


# Arguments of both, of resume alone, and of restore alone.
WRONG = [
    ({"memory_budgt": "1GiB"}, TypeError, r"{}\(\) got an unexpected keyword argument 'memory_budgt'"),
    ({"read_only": True}, TypeError, r"{}\(\) got an unexpected keyword argument 'read_only'"),
    ({"follow": True}, TypeError, r"{}\(\) got an unexpected keyword argument 'follow'"),
    ({"memory_budget": "lots"}, ValueError, "memory_budget must be text such as"),
    ({"memory_budget": "1KiB"}, ValueError, "memory_budget must be at least"),
    ({"memory_budget": None}, TypeError, "memory_budget must be an int"),
    ({"device_memory": "lots"}, ValueError, "device_memory must be text such as"),
    ({"durability": "always"}, ValueError, "durability must be 'checkpoint' or 'write', got 'always'"),
    ({"variables": ["nope"]}, KeyError, "has no variable 'nope'; it has users"),
    ({"variables": "users"}, TypeError, r"variables must be a list of names such as \['users'\], got 'users'"),
    ({"variables": ["users", 3]}, TypeError, "variables must be a list of names .* got 3 in it"),
    ({"variables": 3}, TypeError, "variables must be a list of names"),
    ({"warm": "no"}, TypeError, "warm must be True or False, got str 'no'"),
    ({"keep_marks": -1}, ValueError, "keep_marks must be"),
    ({"limits": "large"}, TypeError, r"limits must be a kvemb\.limits\.Limits, got 'large'"),
]
WRONG_FOR_RESUME = [
    ({"number": 9}, CheckpointNotFound, "there is no checkpoint 9 in"),
    ({"number": "1"}, TypeError, "number must be an int"),
    ({"flush_every": 30}, ValueError, "flush_every has no effect with resume"),
    ({"options": {}}, TypeError, r"{}\(\) got an unexpected keyword argument 'options'"),
]
WRONG_FOR_RESTORE = [
    ({"number": 1}, TypeError, r"{}\(\) got an unexpected keyword argument 'number'"),
    ({"flush_every": "30s"}, TypeError, "flush_every must be a number of seconds"),
    ({"options": {"anon": True}}, ValueError, "options are for a URL's filesystem"),
]


def content(folder: Path) -> dict[str, bytes | None]:
    """All names below a folder, and the content of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A series and its store, which has later changes."""
    place = tmp_path_factory.mktemp("trained")
    with kvemb.CheckpointManager(place / "series") as manager, kvemb.open(place / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        manager.save(store)
        train(store, [2], 2.0)
    return place


def test_the_wrong_arguments_are_of_all_that_there_are():
    told = {name for case in (*WRONG, *WRONG_FOR_RESUME) for name in case[0]}
    assert set(inspect.signature(kvemb.CheckpointManager.resume).parameters) - {"self", "path"} <= told
    told = {name for case in (*WRONG, *WRONG_FOR_RESTORE) for name in case[0]}
    assert set(inspect.signature(kvemb.restore).parameters) - {"checkpoint", "path", "progress"} <= told


@pytest.mark.parametrize(("wrong", "error", "message"), [*WRONG, *WRONG_FOR_RESUME])
def test_a_resume_with_a_wrong_argument_changes_nothing(trained, wrong, error, message):
    """It deleted the store, and then raised."""
    before = content(trained)
    with pytest.raises(error, match=message.format(r"CheckpointManager\.resume")):
        kvemb.CheckpointManager(trained / "series").resume(trained / "store", **{**BUDGET, **wrong})
    assert content(trained) == before


@pytest.mark.parametrize(("wrong", "error", "message"), [*WRONG, *WRONG_FOR_RESTORE])
@pytest.mark.parametrize("target", ["store", "new"])
def test_a_restore_with_a_wrong_argument_changes_nothing(trained, target, wrong, error, message):
    before = content(trained)
    with pytest.raises((error, FileExistsError) if target == "store" else error) as raised:
        kvemb.restore(trained / "series", trained / target, **{**BUDGET, **wrong})
    if not isinstance(raised.value, FileExistsError):
        raised.match(message.format("restore"))
    assert content(trained) == before


@pytest.mark.parametrize(
    ("path", "error"), [(3, TypeError), ("", ValueError), ("memory://store", ValueError), ("series", FileExistsError)]
)
def test_a_resume_at_a_wrong_path_changes_nothing(trained, monkeypatch, path, error):
    monkeypatch.chdir(trained)
    before = content(trained)
    with pytest.raises(error):
        kvemb.CheckpointManager("series").resume(path, **BUDGET)
    assert content(trained) == before


@pytest.mark.parametrize("calls", quick([["rename", "replace"], ["link", "unlink", "rmdir", "mkdir"]]), ids=" ".join)
@pytest.mark.parametrize("target", quick(["store", "new", "empty"]))
def test_a_kill_at_any_change_of_a_name_leaves_one_state_or_the_other(tmp_path, trained, target, calls):
    """And the next call succeeds."""
    place = Path(shutil.copytree(trained, tmp_path / "now"))
    (place / "empty").mkdir()
    series = kvemb.CheckpointManager(trained / "series")

    def resume() -> None:
        series.resume(place / target, **BUDGET)[0].close()

    left = killed_at_each(calls, resume, place / target, tmp_path / "killed")
    seen = set()
    for store in left:
        shutil.copytree(store, again := store.with_name("again"))
        try:
            with kvemb.open(store, read_only=True, **BUDGET) as reader:
                seen.add(tuple(rows(reader)))
        except StoreNotFound:
            assert target != "store"
        with series.resume(again, **BUDGET)[0] as resumed:
            assert rows(resumed) == [1.0, 0.0]
    assert seen == ({(1.0, 2.0), (1.0, 0.0)} if target == "store" else {(1.0, 0.0)})


def test_a_store_takes_its_variables_with_it_when_it_goes_back(tmp_path, manager):
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        store.get_variable("items", dim=3).upsert([1], np.ones((1, 3), np.float32))
        manager.save(store)
    store, _ = manager.resume(tmp_path / "store", variables=["users"], **BUDGET)
    with store:
        assert (list(store.variables), rows(store)) == (["users"], [1.0, 0.0])


def test_rows_that_are_only_in_the_log_are_kept_if_the_series_has_none(tmp_path, manager):
    """The durable point has no row, and the store was deleted."""
    store, _ = manager.resume(tmp_path / "store", durability="write", **BUDGET)
    store.get_variable("users", dim=2)
    store.flush()
    train(store, [1], 1.0)
    copy_of_open(tmp_path / "store", tmp_path / "killed")
    store.close()
    with pytest.raises(FileExistsError, match="has 1 row and the series has no checkpoint yet"):
        manager.resume(tmp_path / "killed", durability="write", **BUDGET)
    with kvemb.open(tmp_path / "killed", **BUDGET) as store:
        assert rows(store) == [1.0, 0.0]


def test_without_a_checkpoint_variables_may_be_made_in_another_way(tmp_path, manager):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    store.get_variable("users", dim=2)
    store.close()
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    with store:
        assert store.get_variable("users", dim=5).dim == 5


def test_the_log_of_a_store_that_goes_back_is_not_replayed(tmp_path, manager, caplog):
    store, _ = manager.resume(tmp_path / "store", durability="write", **BUDGET)
    train(store, [1], 1.0)
    manager.save(store)
    train(store, [2], 2.0)
    copy_of_open(tmp_path / "store", tmp_path / "killed")
    store.close()
    for _ in range(2):
        store, _ = manager.resume(tmp_path / "killed", durability="write", **BUDGET)
        assert (rows(store), store.recovery) == ([1.0, 0.0], None)
        train(store, [2], 3.0)
        store.close(flush=False)
    with kvemb.open(tmp_path / "killed", **BUDGET) as store:
        assert rows(store) == [1.0, 3.0]
    assert store.point > 2_000_000


def test_a_disk_that_does_no_more_than_delete_keeps_nothing_of_a_restore_that_failed(tmp_path, manager, monkeypatch):
    store, _ = manager.resume(tmp_path / "store", **BUDGET)
    train(store, [1], 1.0)
    saved = manager.save(store)
    store.close()
    refuse = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))

    def fail(*_: Any) -> None:
        monkeypatch.setattr(os, "rename", refuse)
        raise ColdStoreError("the disk")

    monkeypatch.setattr(opening, "open_at", fail)
    with pytest.raises(ColdStoreError, match="the disk"):
        kvemb.restore(saved, tmp_path / "restored", **BUDGET)
    assert not (tmp_path / "restored").exists()


def test_a_restored_store_that_another_process_has_opened_meanwhile_is_its(tmp_path, manager, monkeypatch):
    """It was deleted."""
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        saved = manager.save(store)
    others: list[kvemb.Store] = []

    def first(path: Path, how: Any) -> kvemb.Store:
        others.append(kvemb.Store(Engine(path, **BUDGET)))
        return real(path, how)

    real = opening.open_at
    monkeypatch.setattr(opening, "open_at", first)
    with pytest.raises(Locked):
        kvemb.restore(saved, tmp_path / "restored", **BUDGET)
    with others[0] as other:
        assert rows(other) == [1.0, 0.0]


def test_a_killed_restore_is_replaced_by_another_unless_it_may_be_a_store(tmp_path, manager):
    with kvemb.open(tmp_path / "store", **BUDGET) as store:
        train(store, [1], 1.0)
        first, second = manager.save(store), manager.save(store)
    kvemb.restore(first, tmp_path / "new", **BUDGET).close(flush=False)
    for name in ("CURRENT", "LOCK"):
        (tmp_path / "new" / name).unlink()
    (tmp_path / "new" / "points" / ".000009.1-1.tmp").mkdir()
    with kvemb.restore(second, tmp_path / "new", **BUDGET) as store:
        assert rows(store) == [1.0, 0.0]
        train(store, [2], 2.0)
    for name in ("CURRENT", "LOCK"):
        (tmp_path / "new" / name).unlink()
    before = content(tmp_path / "new")
    with pytest.raises(FileExistsError, match=r"has no CURRENT, but .* run kvemb repair"):
        kvemb.restore(second, tmp_path / "new", **BUDGET)
    assert content(tmp_path / "new") == before


@pytest.mark.parametrize("at", ["unpack", "set_current"])
def test_a_full_disk_leaves_the_store_as_it_was(tmp_path, trained, monkeypatch, at):
    store = Path(shutil.copytree(trained / "store", tmp_path / "store"))
    before, series = content(store), kvemb.CheckpointManager(trained / "series")
    monkeypatch.setattr(layout, at, Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(ColdStoreError, match="No space left on device"):
        series.resume(store, **BUDGET)
    monkeypatch.undo()
    if at == "unpack":
        assert content(store) == before
    with kvemb.open(store, **BUDGET) as opened:
        assert rows(opened) == [1.0, 2.0]
    with series.resume(store, **BUDGET)[0] as resumed:
        assert rows(resumed) == [1.0, 0.0]
