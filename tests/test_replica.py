"""Replicas, which follow a store by its deltas."""

from __future__ import annotations

import json

import numpy as np
import pytest
from deltas import fill, open_store_from, told
from histories import DIM

import kvemb
from kvemb import bulk
from kvemb.errors import CheckpointNotFound, Corruption, SchemaMismatch
from kvemb.handle import inside


def test_a_replica_is_durable_where_it_was_brought_and_goes_on_from_there(open_store, tmp_path):
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1, 2, 3], 1)
    replica = open_store_from(trainer.checkpoint(tmp_path / "a"), tmp_path / "replica", open_store)
    fill(trainer, [3, 4], 2)
    trainer.variables["table"].remove([1])
    second = trainer.checkpoint(tmp_path / "b")
    replica.variables["table"].lookup([1, 2, 3])
    replica.apply_delta(second)
    replica.apply_delta(second)
    replica.close()
    replica = open_store(tmp_path / "replica")
    assert replica.variables["table"].export()[0].tolist() == [2, 3, 4]
    own = fill(replica, [9], 9)
    mine = replica.checkpoint(tmp_path / "mine")
    assert mine.parent == second.id
    # The row that was only used here differs too: its score is its own.
    assert sorted(told(mine, second, "table")[0]) == [2, 9]
    fill(trainer, [5], 5)
    replica.apply_delta(trainer.checkpoint(tmp_path / "c"))
    assert own.export()[0].tolist() == [2, 3, 4, 5, 9]


def test_a_checkpoint_before_the_one_a_replica_was_brought_to_changes_nothing(open_store, tmp_path):
    """Also one that it passed without being brought to it; also after the replica was opened or restored again."""
    trainer = open_store(tmp_path / "trainer")
    made = []
    for number in range(1, 5):
        fill(trainer, [1, 10 + number], number)
        made.append(trainer.checkpoint(tmp_path / f"{number}"))
    replica = open_store_from(made[0], tmp_path / "replica", open_store)
    for checkpoint in (made[2], made[3]):
        replica.apply_delta(checkpoint)
        expected = dict(zip(*(each.tolist() for each in replica.variables["table"].export()), strict=True))
    mine = replica.checkpoint(tmp_path / "mine")
    replica.close()
    for replica in (open_store(tmp_path / "replica"), open_store_from(mine, tmp_path / "again", open_store)):
        for checkpoint in made:
            replica.apply_delta(checkpoint)
            rows = replica.variables["table"].export()
            assert dict(zip(*(each.tolist() for each in rows), strict=True)) == expected


@pytest.mark.parametrize("restored", [False, True])
def test_a_replica_does_not_mix_the_rows_of_a_store_that_went_back(open_store, tmp_path, restored):
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1, 2], 1)
    first = trainer.checkpoint(tmp_path / "a")
    replica = open_store_from(first, tmp_path / "replica", open_store)
    fill(trainer, [1], 2)
    second = trainer.checkpoint(tmp_path / "b")
    if restored:
        replica.close()
        replica = open_store_from(second, tmp_path / "later", open_store)
    else:
        replica.apply_delta(second)
    fill(replica, [9], 9)
    replica.checkpoint(tmp_path / "mine")
    again = open_store_from(first, tmp_path / "trainer again", open_store)
    fill(again, [2], 3)
    other = again.checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointNotFound, match=f"since checkpoint {second.id}, .* went back .*; restore it to a new"):
        replica.apply_delta(other)
    fill(trainer, [1], 4)
    replica.apply_delta(trainer.checkpoint(tmp_path / "d"))
    assert replica.variables["table"].export()[0].tolist() == [1, 2, 9]
    assert replica.variables["table"].lookup([1])[0, 0] == trainer.variables["table"].lookup([1])[0, 0]


def test_rows_a_replica_changed_alone_are_told_after_it_was_brought_on(open_store, tmp_path):
    """The chain of its checkpoints stays exact: what differs from the trainer's is recorded from there on."""
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1, 2, 3], 1)
    first = trainer.checkpoint(tmp_path / "a")
    replica = open_store_from(first, tmp_path / "replica", open_store)
    fill(replica, [7], 7)
    fill(trainer, [2], 2)
    second = trainer.checkpoint(tmp_path / "b")
    replica.apply_delta(second)
    mine = replica.checkpoint(tmp_path / "mine")
    assert sorted(told(mine, second, "table")[0]) == [7]
    assert sorted(told(mine, first, "table")[0]) == [2, 7]


def test_what_a_replica_cleared_alone_is_told_after_it_was_brought_on(open_store, tmp_path):
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1, 2, 3], 1)
    first = trainer.checkpoint(tmp_path / "a")
    replica = open_store_from(first, tmp_path / "replica", open_store)
    replica.variables["table"].clear()
    fill(trainer, [2], 2)
    second = trainer.checkpoint(tmp_path / "b")
    replica.apply_delta(second)
    mine = replica.checkpoint(tmp_path / "mine")
    assert replica.variables["table"].export()[0].tolist() == [2]
    assert told(mine, second, "table")[1] == [1, 3]
    assert told(mine, first, "table")[1] == [1, 3]


def test_a_replica_with_another_schema_is_refused_before_anything_changes(open_store, tmp_path):
    trainer = open_store(tmp_path / "trainer")
    replica = open_store_from(trainer.checkpoint(tmp_path / "a"), tmp_path / "replica", open_store)
    replica.get_variable("z", dim=DIM + 1)
    fill(trainer, [1], 1)
    trainer.get_variable("z", dim=DIM)
    with pytest.raises(SchemaMismatch, match="'z'"):
        replica.apply_delta(trainer.checkpoint(tmp_path / "b"))
    assert sorted(replica.variables) == ["z"]


def test_a_variable_that_was_left_out_stays_out_of_a_replica_and_a_new_one_comes(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    one = np.ones((100, 1), np.float32)
    for name in ("kept", "left out"):
        store.get_variable(name).upsert(np.arange(100), one)
    store.get_variable("empty")
    store.checkpoint(tmp_path / "first")
    kvemb.restore(tmp_path / "first", tmp_path / "replica", variables=["kept"], memory_budget="8MiB").close()
    for round in range(2):
        store.variables["left out"].upsert(np.arange(100), 5 * one)  # all of its rows
        store.variables["kept"].upsert([1], 7 * one[:1])
        store.get_variable("new").upsert(np.arange(50), one[:50])
        store.checkpoint(tmp_path / f"next{round}")
        with kvemb.open(tmp_path / "replica", memory_budget="8MiB") as replica:
            replica.apply_delta(tmp_path / f"next{round}")
            assert list(replica.variables) == ["kept", "new"]
            assert replica.variables["new"].size() == 50
            assert replica.variables["kept"].lookup([1])[0, 0] == 7
            replica.check(deep=True)
            replica.checkpoint(tmp_path / f"replica{round}")
    assert json.loads((tmp_path / "replica1/manifest.json").read_text())["left_out"] == ["empty", "left out"]
    with kvemb.restore(tmp_path / "replica1", tmp_path / "again", memory_budget="8MiB") as again:
        store.variables["left out"].upsert([7], one[:1])
        store.checkpoint(tmp_path / "last")
        again.apply_delta(tmp_path / "last")
        assert list(again.variables) == ["kept", "new"]


def test_rows_that_come_to_a_replica_with_a_ttl_of_its_own_begin_their_time_there(open_store, tmp_path):
    trainer = open_store(tmp_path / "trainer")
    fill(trainer, [1], 1)
    replica = open_store_from(trainer.checkpoint(tmp_path / "a"), tmp_path / "replica", open_store)
    own = replica.get_variable("table", ttl=3600.0)
    inside(own).storage.advance(50, 0)  # as many ages as it has counted
    fill(trainer, [2], 2)
    replica.apply_delta(trainer.checkpoint(tmp_path / "b"))
    (rows,) = bulk.scan(own)
    (step,) = rows.steps[rows.keys == 2]
    # The thread that keeps bounds may count one more age at any time.
    assert 50 <= step <= inside(own).storage.step


def test_a_row_whose_score_is_not_a_number_does_not_come_to_a_replica(open_store, tmp_path):
    """It would have become hot there: a full bucket of such rows has no lowest score, so none could be evicted."""
    trainer = open_store(tmp_path / "trainer")
    table = fill(trainer, [1, 2], 1)
    replica = open_store_from(trainer.checkpoint(tmp_path / "a"), tmp_path / "replica", open_store)
    mine = replica.variables["table"]
    mine.lookup([1, 2])
    fill(trainer, [2], 2)
    storage = inside(table).storage
    with storage.access.held():
        cells = storage.hot_tables.find(np.array([2]), storage.hot_tables.owners(np.array([2])))
        storage.hot_tables.set_scores(cells, storage.hot_tables.owners(np.array([2])), np.array([np.nan]))
    second = trainer.checkpoint(tmp_path / "b")
    trainer.close()  # its check would find the row, too
    with pytest.raises(Corruption, match="the score of key 2 is not a number"):
        replica.apply_delta(second)
    assert mine.lookup([1, 2])[:, 0].tolist() == [1, 1]
