"""Restore from places: what is asked is checked before anything is pulled. test_places.py has what is restored."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import kvemb

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def pushed(tmp_path):
    with (
        kvemb.open(tmp_path / "one", memory_budget="4MiB") as store,
        kvemb.CheckpointManager(tmp_path / "ones") as ones,
    ):
        store.get_variable("table", dim=2).upsert(np.arange(9), np.ones((9, 2), np.float32))
        ones.save(store)
        ones.push(tmp_path / "pushed")
    return tmp_path / "pushed"


def test_arguments_are_checked_before_anything_is_pulled(tmp_path, pushed):
    for path in (pushed / "files").glob("*/*"):
        path.unlink()
    with pytest.raises(KeyError, match="pushed/00000001 has no variable 'other'; it has table"):
        kvemb.restore(pushed, tmp_path / "store", variables=["other"])
    with pytest.raises(ValueError, match="inside the store"):
        kvemb.restore(pushed, tmp_path / "one" / "store")
    with pytest.raises(FileExistsError, match="is not empty"):
        kvemb.restore(pushed, tmp_path)
    with pytest.raises(ValueError, match="memory_budget"):
        kvemb.restore(pushed, tmp_path / "store", memory_budget="none")
    with pytest.raises(ValueError, match="must be a local directory"):
        kvemb.restore(pushed, "memory://store")
    with pytest.raises(TypeError, match="checkpoint must be"):
        kvemb.restore(3, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_progress_is_told_and_the_newest_is_named(tmp_path, pushed, caplog):
    told = []
    with caplog.at_level(logging.INFO, "kvemb"):
        kvemb.restore(pushed, tmp_path / "store", progress=lambda *count: told.append(count)).close()
    assert told[-1][0] == told[-1][1] > 0
    assert f"restoring {pushed}/00000001, the newest checkpoint of {pushed}" in caplog.messages
