"""What a crash left in a series: resume names a checkpoint that lacks only that; the next save deletes the rest."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import kvemb
from kvemb.durability import layout
from kvemb.errors import Corruption, Locked
from kvemb.offline import leftovers

BUDGET = {"memory_budget": "4MiB"}


@pytest.fixture
def left(tmp_path):
    """A series of two checkpoints, the second of which lacks its name."""
    root = tmp_path / "series"
    with kvemb.open(tmp_path / "store", **BUDGET) as store, kvemb.CheckpointManager(root) as manager:
        table = store.get_variable("users", dim=2)
        for row in (1, 2):
            table.upsert([1], np.full((1, 2), row, np.float32))
            manager.save(store)
    return (root / "00000002").rename(root / ".00000002.123-1.tmp")


def names(left):
    return sorted(path.name for path in left.parent.iterdir() if path.name != "LOCK")


def test_a_checkpoint_that_the_store_follows_gets_its_name(left, tmp_path):
    leftovers.complete(left.parent, tmp_path / "store")
    assert names(left) == ["00000001", "00000002"]
    leftovers.complete(left.parent, tmp_path / "store")
    assert names(left) == ["00000001", "00000002"]


@pytest.mark.parametrize(
    "reason", ["not followed", "being deleted", "there", "without a file", "damaged", "without a manifest"]
)
def test_anything_else_stays_until_the_next_save_deletes_it(left, tmp_path, reason):
    store = tmp_path / "store"
    if reason == "not followed":
        store = tmp_path / "other"
        kvemb.restore(left.parent / "00000001", store, **BUDGET).close()
    elif reason == "being deleted":
        left.rename(left.parent / layout.dropped_name(2))
    elif reason == "there":
        (left.parent / "00000002").mkdir()
    elif reason == "damaged":
        (left / "manifest.json").write_text("{}")
    else:
        (left / {"without a file": "rows/CURRENT", "without a manifest": "manifest.json"}[reason]).unlink()
    before = names(left)
    leftovers.complete(left.parent, store)
    assert names(left) == before
    leftovers.clear(left.parent)
    assert names(left) == ["00000001", *(["00000002"] if reason == "there" else [])]


def test_a_store_that_is_open_or_missing_or_deleted_in_part(left, tmp_path):
    leftovers.complete(left.parent, tmp_path / "none")
    with kvemb.open(tmp_path / "store", **BUDGET), pytest.raises(Locked):
        leftovers.complete(left.parent, tmp_path / "store")
    (tmp_path / "store" / "CURRENT").write_text("000099\n")
    with pytest.raises(Corruption):
        leftovers.complete(left.parent, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "points")
    leftovers.complete(left.parent, tmp_path / "store")
    assert left.exists()


def test_resume_completes_what_a_killed_save_left_and_keeps_no_lock(left, tmp_path):
    with kvemb.CheckpointManager(left.parent) as manager:
        store, newest = manager.resume(tmp_path / "store", **BUDGET)
        with store:
            assert newest.path.name == "00000002"
            assert store.variables["users"].lookup([1]).tolist() == [[2, 2]]
            with layout.lock(left.parent):
                pass


def test_another_store_that_resumes_leaves_it_to_the_one_that_saved_it(left, tmp_path):
    store, newest = kvemb.CheckpointManager(left.parent).resume(tmp_path / "evaluator", **BUDGET)
    store.close()
    assert newest.path.name == "00000001"
    store, newest = kvemb.CheckpointManager(left.parent).resume(tmp_path / "store", **BUDGET)
    store.close()
    assert newest.path.name == "00000002"


def test_a_series_that_another_process_writes_to_is_left_to_it(left, tmp_path):
    with layout.lock(left.parent):
        store, newest = kvemb.CheckpointManager(left.parent).resume(tmp_path / "store", **BUDGET)
        store.close()
    assert (newest.path.name, left.exists()) == ("00000001", True)
