"""A new store made from a checkpoint: all of it or some variables, by one process, or nothing is left."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout
from kvemb.durability.installing import left_by_restore, restoring
from kvemb.errors import ColdStoreError, Corruption, Locked
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

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", Mock(side_effect=OSError(18, "Invalid cross-device link")))
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


@pytest.mark.parametrize(
    ("made", "left"),
    [(["points"], True), (["points", "CURRENT.tmp"], True), (["points", "LOCK"], False), (["live"], False)],
)
def test_only_what_a_restore_makes_is_left_by_one(tmp_path, made, left):
    for name in made:
        (tmp_path / name).mkdir()
    assert left_by_restore(tmp_path) == left
    assert not left_by_restore(tmp_path / "missing")
