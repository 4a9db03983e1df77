"""A new store made from a checkpoint: all of it or some variables, by one process, or nothing is left."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout
from kvemb.durability.installing import check_store_path, left_by_restore, restoring
from kvemb.errors import ColdStoreError, Corruption, Locked, StoreNotFound
from tests.histories import DIM, KEYS


def test_a_restore_of_some_variables(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    for name in ("a", "b", "c"):
        store.get_variable(name, dim=DIM).upsert([1, 2], np.ones((2, DIM), np.float32))
    taken = store.checkpoint(tmp_path / "checkpoint")
    with kvemb.restore(taken, tmp_path / "some", variables=["a", "c"]) as some:
        assert sorted(some.variables) == ["a", "c"]
        assert some.variables["c"].export()[0].tolist() == [1, 2]
        assert some.get_variable("b", dim=7).size() == 0
    with pytest.raises(KeyError, match="no variable 'x'; it has a, b, c"):
        kvemb.restore(taken, tmp_path / "none", variables=["x"])
    assert not (tmp_path / "none").exists()


def test_a_damaged_table_file_does_not_become_a_sound_one_by_copying(monkeypatch, store, tmp_path):
    table = store.get_variable("table", dim=DIM)
    table.upsert(KEYS, np.ones((len(KEYS), DIM), np.float32))
    taken = store.checkpoint(tmp_path / "checkpoint")
    (file,) = (taken.path / "rows").glob("*.sst")
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 3] ^= 4
    file.write_bytes(damaged)

    real = os.link

    def link(source, target):  # the checkpoint is on another filesystem
        if str(source).startswith(str(taken.path)):
            raise OSError(18, "Invalid cross-device link")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(Corruption, match=file.name):
            kvemb.restore(taken, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    damaged[len(damaged) // 3] ^= 4
    file.write_bytes(damaged)  # the store's own file too


def test_one_process_at_a_time_makes_a_store(tmp_path):
    again = restoring(tmp_path / "store")
    with (
        restoring(tmp_path / "store"),
        pytest.raises(Locked, match="another process is restoring"),
        again,
    ):
        raise AssertionError("two make it")
    with restoring(tmp_path / "store"):
        pass


def test_a_disk_that_is_full_at_the_end_of_a_restore_is_told_and_leaves_nothing(store, tmp_path, monkeypatch):
    taken = store.checkpoint(tmp_path / "taken")

    monkeypatch.setattr(layout, "set_current", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ColdStoreError, match=r"cannot write .*CURRENT: .*No space left on device"):
        kvemb.restore(taken, tmp_path / "restored", memory_budget="8MiB")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("entries", [[], ["LOCK"], ["LOCK", "live", "points"], ["CURRENT.tmp"], ["CURRENT", "any"]])
def test_a_place_for_a_store(tmp_path, entries):
    for name in entries:
        (tmp_path / name).touch()
    check_store_path(tmp_path)
    check_store_path(tmp_path / "missing")


def test_a_draft_of_a_crash_during_creation_is_no_point(tmp_path):
    """Its manifest may be empty still; that was called damage."""
    draft = tmp_path / "points" / ".000001.1-1.tmp"
    draft.mkdir(parents=True)
    (draft / "manifest.json").touch()
    (tmp_path / "LOCK").touch()
    check_store_path(tmp_path)


def test_what_a_restore_that_was_killed_left_does_not_open_as_an_empty_store(tmp_path):
    """A program that restores unless the store is there would have gone on without its rows."""
    (tmp_path / "points" / ".000007.1-1.tmp" / "rows").mkdir(parents=True)
    with pytest.raises(StoreNotFound, match=r"left by an interrupted restore, .* call kvemb\.restore, .* again"):
        check_store_path(tmp_path)
    (tmp_path / "live").mkdir()
    with pytest.raises(StoreNotFound, match="it has points, but neither CURRENT nor LOCK"):
        check_store_path(tmp_path)


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (["points"], True),
        (["points", "log"], True),
        (["points", "CURRENT.tmp"], True),
        (["points", "LOCK"], False),
        (["points", "CURRENT"], False),
        (["live"], False),
    ],
)
def test_only_what_a_restore_makes_is_left_by_one(tmp_path, made, left):
    for name in made:
        (tmp_path / name).mkdir()
    assert left_by_restore(tmp_path) == left
    assert not left_by_restore(tmp_path / "missing")


def test_no_place_for_a_store(tmp_path):
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(StoreNotFound, match=r"it contains 'photo\.jpg'"):
        check_store_path(tmp_path)
    with pytest.raises(StoreNotFound, match="is a file"):
        check_store_path(tmp_path / "photo.jpg")
    (tmp_path / "manifest.json").touch()
    with pytest.raises(StoreNotFound, match=r"is a checkpoint, not a store.*restore"):
        check_store_path(tmp_path)
