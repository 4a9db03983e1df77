"""Sightings of an Admission in what is done with checkpoints: resumed, pushed, pulled, migrated."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvemb
from kvemb.handle import inside
from kvemb.tools import inspect, migrate
from kvemb.tools.cli import run

HOW = {"memory_budget": "8MiB"}


def sight(store, *keys, key_dtype="int64", **given):
    """Train these keys, and return the keys that have a row."""
    admission = kvemb.Admission(3, 4096)
    table = store.get_variable("v", key_dtype, dim=1, optimizer=kvemb.optimizers.SGD(1.0), admission=admission, **given)
    table.apply_gradients(np.array(keys, key_dtype), -np.ones((len(keys), 1), np.float32))
    return table.export()[0].tolist()


def test_a_trainer_that_is_often_preempted_admits_a_rare_key(tmp_path, manager):
    found = []
    for turn in range(4):
        store, _ = manager.resume(tmp_path / "store", **HOW)
        with store:
            found.append(sight(store, 1))
            manager.save(store)
            sight(store, 1, 1, 1)  # lost: after the checkpoint
            if turn % 2:
                store.close(flush=False)
    assert found == [[], [], [1], [1]]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_checkpoint_that_was_pushed_as_a_delta_counts_on(tmp_path, manager, number):
    with kvemb.open(tmp_path / "store", **HOW) as store:
        sight(store)
        store.variables["v"].upsert(np.arange(100, 3000), np.ones((2900, 1), np.float32))
        for keys in ([1], [2, 2], [1, 3]):
            sight(store, *keys)
            manager.save(store)
            pushed = manager.push(tmp_path / "url")
    assert pushed.deltas == 2
    with kvemb.CheckpointManager(tmp_path / "here") as here:
        pulled = here.pull(tmp_path / "url", number=number)
        assert kvemb.verify(pulled, deep=True)
        with kvemb.restore(pulled, tmp_path / "restored", **HOW) as store:
            assert sight(store, 1, 2)[:2] == {1: [100, 101], 2: [2, 100], 3: [1, 2]}[number]


def test_a_restored_part_of_the_variables_has_their_sightings(tmp_path):
    with kvemb.open(tmp_path / "store", **HOW) as store:
        sight(store, 1, 1)
        store.get_variable("w", dim=1)
        checkpoint = store.checkpoint(tmp_path / "checkpoint")
    with kvemb.restore(checkpoint, tmp_path / "without", variables=["w"], **HOW) as store:
        assert sight(store, 1) == []
    with kvemb.restore(checkpoint, tmp_path / "with", variables=["v"], **HOW) as store:
        assert sight(store, 1) == [1]


@pytest.mark.parametrize("key_dtype", ["int64", "uint64"])
def test_migration_takes_sightings_along(tmp_path, key_dtype):
    with kvemb.open(tmp_path / "store", **HOW) as store:
        sight(store, 1, 1, 2, key_dtype="int32")
        sight(store, 7, 7, 7, key_dtype="int32")
    plan = migrate.plan(tmp_path / "store", tmp_path / "out", key_dtype=key_dtype)
    assert migrate.migrate(plan) == 1
    with kvemb.open(tmp_path / "out", **HOW) as store:
        assert sight(store, 1, 2, key_dtype=key_dtype) == [1, 7]


def test_small_changes_make_small_files(tmp_path, manager):
    """Thirty checkpoints of counters of 1 MiB: each has what was counted, in far fewer bytes."""
    with kvemb.open(tmp_path / "store", **HOW) as store:
        admission = kvemb.Admission(3)
        table = store.get_variable("v", dim=1, optimizer=kvemb.optimizers.SGD(1.0), admission=admission)
        sizes, keys = [], np.random.default_rng(1).integers(0, 1 << 40, (10, 100))
        for batch in keys:
            table.apply_gradients(batch, np.ones((100, 1), np.float32))
            files = inside(manager.save(store)).files
            sizes += [entry.bytes for name, entry in files.items() if name.startswith("sightings/")]
    assert len(sizes) == 10
    assert max(sizes) < 20_000


def test_info_says_what_was_counted_wherever_the_checkpoint_is(tmp_path, manager, capsys):
    with kvemb.open(tmp_path / "store", **HOW) as store:
        store.get_variable("other", dim=1).upsert([1], [[1.0]])
        sight(store, 1, 2, 2)
        made = manager.save(store)
        pushed = manager.push(tmp_path / "url")
    assert pushed.number == 1
    found = inspect.info(made.path)
    (nbytes,) = (nbytes for name, nbytes in found.files.items() if name.startswith("sightings/"))
    for place in (made.path, tmp_path / "store", tmp_path / "url"):
        other, counted = (each.sightings for each in inspect.info(place).variables)
        assert (other, counted) == (None, {"counted": 3, "counters": 4096, "bytes": nbytes})
    assert run(["info", str(made.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variables"][1]["sightings"] == counted
    assert run(["info", str(made.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    told = (
        "3 sightings of keys without a row (since the counters began or were last halved); "
        f"4.0 KiB of counters, {nbytes} B on disk"
    )
    assert shown.count("admission: ") == shown.count(f"admission: {told}") == 1
