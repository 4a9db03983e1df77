"""What is saved to a series: when, and how long it stays beside its readers."""

from __future__ import annotations

import datetime
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from versions import fill, rows_of

import kvemb
from kvemb import fresh_files
from kvemb.durability import changes, inventory
from kvemb.errors import CheckpointNotFound
from kvemb.offline import series, streams

fsspec = pytest.importorskip("fsspec")
DIM = 3


def test_what_is_dropped_takes_nothing_from_what_stays(store, tmp_path):
    # All rows are hot, so each checkpoint adds one file: too few in all for RocksDB to merge them at a time of its own.
    table = store.get_variable("table", dim=DIM, hot_rows=16_384)
    with kvemb.CheckpointManager(tmp_path / "series", keep=2) as manager:
        for version in range(5):
            keys = np.arange(version * 1000, version * 1000 + 1000)
            table.upsert(keys, np.full((1000, DIM), version, np.float32))
            manager.save(store)
            assert manager.numbers() == [n for n in (version, version + 1) if n]
        assert sorted(path.name for path in manager.root.iterdir()) == ["00000004", "00000005", "LOCK"]
        before, after = ({file.stat().st_ino for file in each.path.glob("rows/*.sst")} for each in manager.list())
        assert before < after, "unchanged files are shared"
        assert (len(before), len(after)) == (4, 5)
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


def test_a_checkpoint_is_complete_also_if_old_ones_cannot_be_listed(monkeypatch, store, tmp_path):
    with kvemb.CheckpointManager(tmp_path / "series", keep=1) as manager:
        manager.save(store)
        with monkeypatch.context() as patched:
            listed = [[1], [1], [1], OSError(errno.EMFILE, "too many open files")]
            patched.setattr(series.paths, "series_numbers", Mock(side_effect=listed))
            assert manager.save(store, block=False).result().path == manager.path(2)
        assert manager.numbers() == [1, 2]
        manager.save(store)
        assert manager.numbers() == [3]


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
        now -= 86_400  # the clock was a day ahead: there would be no checkpoint until tomorrow
        again.save_if_due(store).result()
        assert again.numbers() == [1, 2, 3, 4]
        now += 59
        assert again.save_if_due(store) is None


def test_a_first_save_is_due_whatever_the_clock_says(monkeypatch, store, tmp_path):
    """The clock of a machine may be in 1970 until it is set."""
    monkeypatch.setattr(series.time, "time", lambda: 5.0)
    with kvemb.CheckpointManager(tmp_path / "series", every=60) as manager:
        fill(store, 1)
        saved = manager.save_if_due(store, block=True, files={"model": b"1"}, extra={"n": 1})
        assert (saved.path, saved.files["model"].read_bytes(), saved.extra) == (manager.path(1), b"1", {"n": 1})
        assert manager.save_if_due(store, files={"model": pytest.fail}) is None


def test_arguments_are_checked(store, tmp_path):
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="keep must be"):
            kvemb.CheckpointManager(tmp_path / "series", keep=wrong)
    for every in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="every must be a number of seconds, above 0"):
            kvemb.CheckpointManager(tmp_path / "series", every=every)
    for every in ("10min", "600", True, datetime.timedelta(minutes=10)):
        with pytest.raises(TypeError, match="every must be a number of seconds, such as 600 for ten minutes, got"):
            kvemb.CheckpointManager(tmp_path / "series", every=every)
    with pytest.raises(ValueError, match="made with every="):
        kvemb.CheckpointManager(tmp_path / "series").save_if_due(store)
    for wrong in (None, tmp_path / "store", store.get_variable("users", dim=1)):
        manager = kvemb.CheckpointManager(tmp_path / "series", every=3600)
        for save in (manager.save, manager.save_if_due):
            with pytest.raises(TypeError, match=r"store must be a kvemb\.Store, got"):
                save(wrong)
    assert not (tmp_path / "series").exists()


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


@pytest.mark.parametrize(
    ("where", "name", "read"),
    [
        (inventory, "damages", lambda read, out: kvemb.open(read, read_only=True)),
        (inventory, "damages", lambda read, out: kvemb.restore(read, out)),
        (inventory, "damages", lambda read, out: kvemb.verify(read)),
        (inventory, "damages", lambda read, out: kvemb.repair(read, out)),
        (changes, "read_keys", lambda read, out: list(read.changes(since=read.path.parent / "00000001"))),
        (streams, "send", lambda read, out: kvemb.CheckpointManager(read.path.parent).push(out)),
        (fresh_files, "remove", lambda read, out: fresh_files.remove(read.path) or read.files["model"]),
    ],
)
def test_a_checkpoint_that_is_deleted_while_it_is_read_is_not_called_damaged(
    monkeypatch, store, tmp_path, where, name, read
):
    """A series deletes old ones beside its readers: they read on about damage, and verify found it."""
    with kvemb.CheckpointManager(tmp_path / "series") as writer:
        fill(store, 1)
        writer.save(store)
        fill(store, 2, [2])
        newest = writer.save(store, files={"model": b"x"})
    real = getattr(where, name)

    def deleting(path: Path, *arguments: Any, **how: Any) -> Any:
        with suppress(FileNotFoundError):  # another thread was first
            os.rename(newest.path, tmp_path / "deleted")
        return real(path, *arguments, **how)

    monkeypatch.setattr(where, name, deleting)
    with pytest.raises(CheckpointNotFound, match="was deleted while it was read"):
        read(newest, tmp_path / "out")
    assert not list(tmp_path.glob("out/**/*.json")), "nothing half"
