"""Checkpoints of a table that goes on changing: the state of one instant, whatever is done while it is written."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from histories import SMALL_PILES
from quick import quick
from stress.lockstep import LockstepChecker
from stress.model import Model
from waiting import wait_until

import kvemb
from kvemb.backends.rocks_files import RocksSortedFile
from kvemb.durability import inventory
from kvemb.durability.checkpoint import Checkpoint, DirectoryDraft
from kvemb.handle import inside
from kvemb.tiers.snapshot import DirtySnapshot, GrowingFile
from tests.histories import DIM, KEYS, change, checker_of


def check_checkpoint(checkpoint: Checkpoint, models: dict[str, Model]) -> None:
    """Compare every row of a checkpoint with the models of its instant, and its counts."""
    with kvemb.open(checkpoint, read_only=True, memory_budget="4MiB") as store:
        assert sorted(store.variables) == sorted(models)
        for name, model in models.items():
            twin = LockstepChecker(store.variables[name], model)
            twin.check_size()
            twin.check_export()
            assert checkpoint.variables[name].step == model.step
    assert list(inventory.damages(checkpoint.path, inside(checkpoint), deep=True)) == []


@pytest.mark.slow
@pytest.mark.limits(**SMALL_PILES)
@pytest.mark.parametrize("seed", quick(range(int(os.environ.get("KVEMB_SEEDS", "2")))))
@pytest.mark.parametrize("hot_rows", [32, 640])
def test_a_checkpoint_has_the_state_of_its_instant(monkeypatch, open_store, tmp_path, seed, hot_rows):
    """The writing is slow, so that every operation meets it at every stage."""
    chance = np.random.default_rng([seed, hot_rows])
    real_take, real_add, real_finish = DirtySnapshot._take, GrowingFile.add, RocksSortedFile.finish

    def slow(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            result = real(*args, **named)
            time.sleep(0.001)
            return result

        return call

    monkeypatch.setattr(DirtySnapshot, "_take", slow(real_take))
    monkeypatch.setattr(GrowingFile, "add", slow(real_add))
    monkeypatch.setattr(RocksSortedFile, "finish", slow(real_finish))
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    twins = {"table": checker_of(store, hot_rows), "other": checker_of(store, 64, ["cpu", "cpu"], "other")}
    states = []
    for turn in range(5):
        for _ in range(int(chance.integers(1, 12))):
            change(twins[chance.choice(list(twins))], chance)
        states.append({name: twin.model.copy() for name, twin in twins.items()})
        pending = store.checkpoint(tmp_path / f"{turn}", block=False)
        for _ in range(int(chance.integers(1, 30))):
            change(twins[chance.choice(list(twins))], chance)
        if turn == 2:
            twins["late"] = checker_of(store, 32, name="late")
            twins["late"].upsert(KEYS[:100], np.ones((100, DIM), np.float32))
            twins["late"].check_export()
        if chance.integers(2):
            store.flush()
        else:
            pending.result()
    for turn, models in enumerate(states):
        check_checkpoint(Checkpoint(tmp_path / f"{turn}"), models)
    for twin in twins.values():
        twin.check_export()
    store.close()
    with open_store(tmp_path / "store", memory_budget="4MiB") as again:
        for name, twin in twins.items():
            LockstepChecker(again.variables[name], twin.model).check_export()


@pytest.mark.limits(**SMALL_PILES)
def test_callers_of_the_last_variable_do_not_wait_until_the_others_are_written(monkeypatch, open_store, tmp_path):
    """The copies of each are written between the files of the first."""
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    ids = np.arange(2_000)
    first, last = (store.get_variable(name, dim=2, hot_rows=4_000) for name in ("first", "last"))
    for variable in (first, last):
        variable.upsert(ids, np.ones((len(ids), 2), np.float32))
    access = inside(last).storage.access
    changing = threading.Thread(target=lambda: [last.upsert(ids[at : at + 50], [[2, 2]] * 50) for at in ids[::50]])
    real_take, real_add = DirtySnapshot._take, GrowingFile.add
    snapshots: list[DirtySnapshot] = []
    ended: list[bool] = []

    def take(snapshot: DirtySnapshot, keys: Any) -> Any:
        if snapshot not in snapshots:
            snapshots.append(snapshot)
            if len(snapshots) == 2:
                ended.append(not changing.is_alive())
        return real_take(snapshot, keys)

    def add(*args: Any, **named: Any) -> Any:
        if changing.ident is None:
            changing.start()
        while changing.is_alive() and access.has_room:
            time.sleep(0.001)
        return real_add(*args, **named)

    monkeypatch.setattr(DirtySnapshot, "_take", take)
    monkeypatch.setattr(GrowingFile, "add", add)
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    changing.join()
    assert ended == [True]
    with kvemb.open(checkpoint, read_only=True) as then:
        for name in ("first", "last"):
            np.testing.assert_array_equal(then.variables[name].lookup(ids), np.ones((len(ids), 2)))
    np.testing.assert_array_equal(last.lookup(ids), np.full((len(ids), 2), 2))


@pytest.mark.slow
@pytest.mark.limits(**SMALL_PILES)
def test_rows_change_from_many_threads_while_a_checkpoint_is_written(open_store, tmp_path):
    """Each row's columns are equal and only grow, so a torn or a later row shows."""
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    table = store.get_variable("table", dim=DIM, hot_rows=400)
    table.upsert(KEYS, np.zeros((len(KEYS), DIM), np.float32))
    stop = threading.Event()
    failures: list[BaseException] = []

    def add(seed: int) -> None:
        chance = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                keys = chance.choice(KEYS, 50, replace=False)
                rows = table.lookup(keys)
                table.accum(keys, rows, rows + 1, np.ones(50, np.bool_))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=add, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    sums = []
    try:
        for turn in range(6):
            low = table.export()[1]
            pending = store.checkpoint(tmp_path / f"{turn}", block=False)
            high = table.lookup(KEYS, touch=False)
            with kvemb.open(pending.result(), read_only=True, memory_budget="4MiB") as read:
                keys, values = read.variables["table"].export()
            assert (keys == KEYS).all()
            assert (values == values[:, :1]).all()
            assert (low <= values).all()
            assert (values <= high).all()
            sums.append(values.sum())
            wait_until(lambda: failures or table.lookup(KEYS, touch=False).sum() > sums[-1])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert sums == sorted(set(sums))


def test_only_what_changed_is_written(open_store, tmp_path):
    store = open_store(tmp_path / "store", memory_budget="64MiB")
    table = store.get_variable("table", dim=32)
    table.upsert(np.arange(20_000), np.ones((20_000, 32), np.float32))
    first = store.checkpoint(tmp_path / "first")
    second = store.checkpoint(tmp_path / "second")
    table.upsert(np.arange(100), np.zeros((100, 32), np.float32))
    third = store.checkpoint(tmp_path / "third")

    def new_bytes(checkpoint: Checkpoint, before: Checkpoint) -> int:
        seen = {path.stat().st_ino for path in before.path.rglob("*")}
        new = [path for path in checkpoint.path.rglob("*") if path.is_file() and path.stat().st_ino not in seen]
        return sum(path.stat().st_size for path in new)

    assert new_bytes(second, first) < 100_000
    assert new_bytes(third, second) < 100_000 + 2 * 100 * (8 + 17 + 128)
    assert first.nbytes > 20_000 * 128
    assert (second.parent, third.parent) == (first.id, second.id)


def test_a_checkpoint_knows_itself(store, tmp_path):
    store.get_variable("table", dim=DIM).upsert([1], np.ones((1, DIM), np.float32))
    taken = store.checkpoint(tmp_path / "checkpoint")
    again = Checkpoint(tmp_path / "checkpoint")
    assert Path(taken) == again.path == tmp_path / "checkpoint"
    assert again.id == taken.id != taken.parent
    assert again.variables["table"].rows == 1
    assert "1 variable, 1 row>" in repr(again)
    with pytest.raises(kvemb.errors.CheckpointNotFound):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("inside", ["checkpoint", "live/checkpoint", "points/00000099", "points/../log/x"])
def test_a_checkpoint_inside_the_store_is_refused(open_store, tmp_path, inside):
    store = open_store(tmp_path / "store")
    store.get_variable("table").upsert([1], [[1.0]])
    before = sorted(store.path.iterdir())
    with pytest.raises(ValueError, match=r"is inside the store .*/store; name a directory beside it"):
        store.checkpoint(store.path / inside)
    assert sorted(store.path.iterdir()) == before
    taken = store.checkpoint(tmp_path / "store-1")
    with pytest.raises(ValueError, match="beside it for the new store"):
        kvemb.restore(taken, store.path / inside)


def test_what_a_killed_process_left_of_a_checkpoint_is_deleted_by_the_next_one(tmp_path):
    target, left, other = tmp_path / "out", tmp_path / ".out.4-1.tmp", tmp_path / ".other.4-1.tmp"
    for folder in (left, other):
        folder.mkdir()
        (folder / "file").touch()
    running = DirectoryDraft(target)  # of another attempt at the same time
    draft = DirectoryDraft(target)
    assert not left.exists()
    assert other.exists()
    running.discard()
    draft.publish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.4-1.tmp", "out"]
