"""A reader that follows a store on the same machine, by its durable points."""

from __future__ import annotations

import numpy as np
import pytest
from crashes import copy_of_open
from deltas import fill
from histories import DIM

import kvemb
from kvemb.errors import Closed, ReadOnly, StoreNotFound


def test_a_follower_shows_the_point_it_was_opened_on_until_it_is_refreshed(open_store, tmp_path):
    trainer = open_store(tmp_path / "store")
    table = fill(trainer, [1, 2, 3], 1)
    trainer.flush()
    follower = open_store(tmp_path / "store", follow=True)
    seen = follower.variables["table"]
    assert seen.lookup([1, 2, 3])[:, 0].tolist() == [1, 1, 1]
    assert not follower.refresh()
    table.remove([1])
    fill(trainer, [2, 4], 2)
    fill(trainer, [7], 7, "new")
    assert not follower.refresh(), "what is not durable does not show"
    trainer.flush()
    scan = seen.export_batches(1)
    next(scan)
    assert seen.export()[0].tolist() == [1, 2, 3]
    assert follower.refresh()
    assert seen.export()[0].tolist() == [2, 3, 4]
    assert seen.size() == 3
    assert seen.lookup([1, 2, 3, 4])[:, 0].tolist() == [0, 2, 1, 2]
    assert follower.variables["new"].lookup([7])[0, 0] == 7
    with pytest.raises(Closed):
        list(scan)
    with pytest.raises(ReadOnly):
        seen.upsert([1], np.ones((1, DIM), np.float32))
    follower.close()
    with pytest.raises(Closed):
        follower.refresh()


def test_slots_of_missing_keys_are_those_of_the_refreshed_optimizer(open_store, tmp_path):
    """They stayed those of the optimizer that the follower was opened with."""
    trainer = open_store(tmp_path / "store")
    table = trainer.get_variable("table", dim=2, optimizer=kvemb.optimizers.RowWiseAdagrad(0.1, 0.25))
    trainer.flush()
    follower = open_store(tmp_path / "store", follow=True)
    (slot,) = follower.variables["table"].get_slot_variables()
    assert slot.lookup([5]).tolist() == [[0.25]]
    table.optimizer = kvemb.optimizers.RowWiseAdagrad(0.1, 0.5)
    table.upsert([1], np.ones((1, 2), np.float32))
    trainer.flush()
    assert follower.refresh()
    assert slot.lookup([5]).tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("how", "shown"), [({"read_only": True}, "what it showed when it was opened"), ({}, "its own changes at once")]
)
def test_a_store_that_follows_none_says_what_it_shows(open_store, tmp_path, how, shown):
    open_store(tmp_path / "store").close()
    with pytest.raises(ValueError, match=f"was not opened with follow=True, so it shows {shown}; to refresh it"):
        open_store(tmp_path / "store", **how).refresh()


def test_another_store_in_the_place_of_the_followed_one_is_refused(open_store, tmp_path):
    open_store(tmp_path / "store").close()
    follower = open_store(tmp_path / "store", follow=True)
    (tmp_path / "store").rename(tmp_path / "old")
    open_store(tmp_path / "store").close()
    with pytest.raises(StoreNotFound, match="another store"):
        follower.refresh()
    assert len(follower.variables) == 0


def test_a_damaged_point_is_an_error_and_the_follower_stays_where_it_is(open_store, tmp_path):
    trainer = open_store(tmp_path / "store")
    fill(trainer, [1], 1)
    trainer.flush()
    follower = open_store(tmp_path / "store", follow=True)
    fill(trainer, [2], 1)
    trainer.close()
    (file,) = (tmp_path / "store").glob("points/*/rows/MANIFEST*")
    sound = file.read_bytes()
    file.write_bytes(sound[:-1])
    with pytest.raises(kvemb.errors.Corruption, match=str(file)):
        follower.refresh()
    assert follower.variables["table"].export()[0].tolist() == [1]
    file.write_bytes(sound)


def test_a_follower_of_a_store_that_resumed_shows_none_of_the_rows_that_were_lost(open_store, tmp_path):
    series = kvemb.CheckpointManager(tmp_path / "series")
    trainer, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
    fill(trainer, [1, 2, 3], 1)
    series.save(trainer)
    fill(trainer, [1, 2, 3], 7)
    trainer.close()  # what is lost below
    follower = open_store(tmp_path / "store", follow=True)
    seen = follower.variables["table"]
    assert seen.lookup([1, 2, 3])[:, 0].tolist() == [7, 7, 7]
    trainer, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
    assert follower.refresh()
    assert seen.lookup([1, 2, 3])[:, 0].tolist() == [1, 1, 1]
    fill(trainer, [2], 8)
    trainer.close()
    trainer, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
    fill(trainer, [3], 9)
    trainer.flush()
    fill(trainer, [3], 10)
    trainer.flush()
    assert follower.refresh()
    assert seen.lookup([1, 2, 3])[:, 0].tolist() == [1, 1, 10]
    trainer.close()
    series.close()


def test_a_follower_stays_warm_when_the_store_resumes_at_its_point(open_store, tmp_path):
    series = kvemb.CheckpointManager(tmp_path / "series")
    trainer, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
    fill(trainer, [1, 2, 3], 1)
    series.save(trainer)
    follower = open_store(tmp_path / "store", follow=True)
    seen = follower.variables["table"]
    seen.lookup([1, 2, 3])
    trainer.close()
    trainer, _ = series.resume(tmp_path / "store", memory_budget="8MiB")
    assert not follower.refresh()
    fill(trainer, [2], 8)
    trainer.flush()
    assert follower.refresh()
    before = seen.stats.misses
    assert seen.lookup([1, 2, 3])[:, 0].tolist() == [1, 8, 1]
    assert seen.stats.misses == before
    trainer.close()
    series.close()


def test_a_store_whose_trainer_was_killed_is_warned_of_once_however_often_it_is_refreshed(open_store, tmp_path, caplog):
    trainer = open_store(tmp_path / "store")
    fill(trainer, [1], 1)
    trainer.flush()
    copy_of_open(tmp_path / "store", tmp_path / "killed")
    follower = open_store(tmp_path / "killed", follow=True)
    assert caplog.text.count("was not closed") == 1
    assert not follower.refresh()
    assert not follower.refresh()
    assert caplog.text.count("was not closed") == 1


def test_a_refresh_while_the_store_is_restored_says_to_call_it_again(open_store, tmp_path):
    trainer = open_store(tmp_path / "store")
    fill(trainer, [1], 1)
    trainer.flush()
    follower = open_store(tmp_path / "store", follow=True)
    trainer.close()
    # What CheckpointManager.resume does, in its order.
    store, away = tmp_path / "store", tmp_path / "away"
    away.mkdir()
    for name in ("points", "CURRENT"):
        (store / name).rename(away / name)
        with pytest.raises(StoreNotFound, match=r"is being restored from a checkpoint, .* call refresh\(\) again"):
            follower.refresh()
    for name in ("points", "CURRENT"):
        (away / name).rename(store / name)
    assert follower.refresh()
    assert follower.variables["table"].lookup([1])[0, 0] == 1
