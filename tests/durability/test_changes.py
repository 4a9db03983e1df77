"""Recorded changes between two checkpoints are exact, and replicas follow a store by them."""

from __future__ import annotations

import json
import os
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from deltas import fill, open_store_from, told
from histories import SMALL_PILES
from quick import quick
from stress.lockstep import LockstepChecker
from stress.model import Model

import kvemb
from kvemb.durability import changes
from kvemb.durability.changes import ChangeLog
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.epochs import files_between
from kvemb.durability.keyfile import read_keys
from kvemb.durability.manifest import Epoch
from kvemb.errors import CheckpointNotFound, Closed
from kvemb.limits import Limits
from tests.histories import DIM, change, checker_of

# Buffers, files and batches so small that every boundary is met.
SMALL_BATCHES = {
    "change_buffer_keys": 50,
    "change_files": 3,
    "scan_rows": 64,
    "change_exact_epochs": 1,
    "change_old_files": 1,
}
FEW_FILES = {
    "change_files": 20,
    "change_buffer_keys": 3,
    "change_epochs": 5,
    "change_exact_epochs": 2,
    "change_old_files": 1,
}


def states(model: Model) -> dict[int, tuple[bytes, ...]]:
    """Every present row of a model: embedding, slots, score."""
    rows = {}
    for place in np.flatnonzero(model.present):
        slots = [slot[place].tobytes() for slot in model.slots.values()]
        rows[int(model.universe[place])] = (model.values[place].tobytes(), *slots, model.scores[place].tobytes())
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("seed", quick(range(int(os.environ.get("KVEMB_SEEDS", "2")))))
@pytest.mark.limits(**SMALL_PILES, **SMALL_BATCHES)
def test_changes_are_exact_between_any_two_checkpoints_and_replicas_follow(open_store, tmp_path, seed):
    chance = np.random.default_rng(seed)
    store = open_store(tmp_path / "store", memory_budget="4MiB")
    twins = {"table": checker_of(store, 64), "other": checker_of(store, 640, ["cpu", "cpu"], "other")}
    taken: list[tuple[Checkpoint, dict[str, Model]]] = []
    replica: kvemb.Store | None = None
    for turn in range(6):
        for _ in range(int(chance.integers(0, 8))):
            change(twins[chance.choice(list(twins))], chance)
            if chance.random() < 0.1:
                store.flush()
        if turn == 3:
            twins["late"] = checker_of(store, 32, name="late")
        if turn == 4 and chance.integers(2):
            store.close()
            store = open_store(tmp_path / "store", memory_budget="4MiB")
            twins = {name: LockstepChecker(store.variables[name], twin.model) for name, twin in twins.items()}
        models = {name: twin.model.copy() for name, twin in twins.items()}
        pending = store.checkpoint(tmp_path / f"{turn}", block=False)
        for _ in range(int(chance.integers(0, 4))):
            change(twins[chance.choice(list(twins))], chance)
        taken.append((pending.result(), models))
        if replica is None:
            replica = open_store_from(taken[0][0], tmp_path / "replica", open_store)
        elif chance.integers(2):
            replica.apply_delta(taken[-1][0])
            for name, model in models.items():
                follower = LockstepChecker(replica.variables[name], model.copy())
                follower.check_size()
                follower.check_export()
    for at, (before, old) in enumerate(taken):
        for after, new in taken[at:]:
            for name, model in new.items():
                then, now = states(old[name]) if name in old else {}, states(model)
                rows, removed = told(after, before, name)
                assert rows == {key: row for key, row in now.items() if then.get(key) != row}
                assert removed == sorted(set(then) - set(now))


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.limits(change_buffer_keys=50, change_files=3, scan_rows=64)
def test_a_variable_that_joins_checkpoints_is_whole_in_the_next_delta(open_store, tmp_path, crash):
    store = open_store(tmp_path / "store")
    table = store.get_variable("late", dim=DIM)
    table.upsert(np.arange(10), np.zeros((10, DIM), np.float32))
    first = store.checkpoint(tmp_path / "first")
    old = kvemb.restore(first, tmp_path / "old")
    table.remove([9])
    store.close()
    store = open_store(tmp_path / "store")
    table = store.get_variable("late", checkpoint=False)
    table.upsert(np.arange(300) + 100, np.ones((300, DIM), np.float32))
    second = store.checkpoint(tmp_path / "second")
    assert "late" not in second.variables
    replica = kvemb.restore(second, tmp_path / "replica")
    store.close()
    store = open_store(tmp_path / "store")
    if crash:
        store.get_variable("late", checkpoint=True)
        store.close(flush=False)
        store = open_store(tmp_path / "store")
    table = store.get_variable("late", checkpoint=True)
    table.upsert([100, 7], np.full((2, DIM), 2, np.float32))
    third = store.checkpoint(tmp_path / "third")
    every = sorted(table.export()[0].tolist())
    assert len(every) == 309
    assert sorted(told(third, second, "late")[0]) == every
    changed, removed = told(third, first, "late")
    assert (sorted(changed), removed) == ([7, *range(100, 400)], [9])
    for follower in (old, replica):
        with follower:
            follower.apply_delta(third)
            for one, other in zip(follower.variables["late"].export(), table.export(), strict=True):
                assert one.tolist() == other.tolist()
    store.close()
    store = open_store(tmp_path / "store")
    store.get_variable("late", checkpoint=True).upsert([1], np.ones((1, DIM), np.float32))
    fourth = store.checkpoint(tmp_path / "fourth")
    assert list(told(fourth, third, "late")[0]) == [1], "it joined once"
    epochs = json.loads((fourth.path / "manifest.json").read_text())["changes"]
    assert [epoch["variables"]["late"]["cleared"] for epoch in epochs[-2:]] == [True, False]


@pytest.mark.parametrize("crash", [False, True])
def test_a_variable_that_leaves_checkpoints_is_gone_in_the_next_delta(open_store, tmp_path, crash):
    """Deltas said nothing of it, so replicas went on with its old rows."""
    store = open_store(tmp_path / "store")
    for name in ("leaves", "stays"):
        store.get_variable(name, dim=DIM).upsert([1, 2], np.ones((2, DIM), np.float32))
    first = store.checkpoint(tmp_path / "first")
    replica = kvemb.restore(first, tmp_path / "replica", memory_budget="4MiB")
    store.close()
    store = open_store(tmp_path / "store")
    if crash:
        store.get_variable("leaves", checkpoint=False)
        store.close(flush=False)
        store = open_store(tmp_path / "store")
    table = store.get_variable("leaves", checkpoint=False)
    reader = kvemb.open(tmp_path / "store", follow=True, memory_budget="4MiB")
    followed = reader.variables["leaves"]
    assert followed.lookup([1, 2])[:, 0].tolist() == [1, 1]
    table.upsert([2, 3], np.full((2, DIM), 2, np.float32))
    second = store.checkpoint(tmp_path / "second")
    assert told(second, first, "leaves") == ({}, [1, 2])
    assert {change.variable for change in second.changes(first)} == {"leaves"}
    with reader:
        assert reader.refresh()
        assert followed.lookup([1, 2, 3])[:, 0].tolist() == [1, 2, 2], "it is still in the store"
    table.upsert([4], np.ones((1, DIM), np.float32))
    third = store.checkpoint(tmp_path / "third")
    assert list(third.changes(second)) == []
    with replica:
        replica.apply_delta(third)
        assert list(replica.variables) == ["stays"]
        store.close()
        store = open_store(tmp_path / "store")
        table = store.get_variable("leaves", checkpoint=True)
        replica.apply_delta(store.checkpoint(tmp_path / "fourth"))
        assert replica.variables["leaves"].export()[0].tolist() == [1, 2, 3, 4]
        assert (replica.variables["leaves"].export()[1] == table.export()[1]).all()


@pytest.mark.parametrize("how", ["it comes back", "it is dropped, and another is made"])
def test_a_reader_loses_a_variable_that_was_dropped_and_none_that_left_the_checkpoints(open_store, tmp_path, how):
    """It lost one that came back before it refreshed, and showed the rows of another one that is not in checkpoints."""
    store = open_store(tmp_path / "store")
    store.get_variable("table", dim=DIM).upsert([1, 2], np.ones((2, DIM), np.float32))
    store.flush()
    with kvemb.open(tmp_path / "store", follow=True, memory_budget="4MiB") as reader:
        followed = reader.variables["table"]
        assert followed.lookup([1])[0, 0] == 1
        for checkpoint in (False, True):
            store.close()
            store = open_store(tmp_path / "store")
            if how == "it comes back":
                table = store.get_variable("table", checkpoint=checkpoint)
                table.upsert([2], np.full((1, DIM), 3, np.float32))
        if how == "it comes back":
            store.flush()
            assert reader.refresh()
            assert followed.lookup([1, 2])[:, 0].tolist() == [1, 3]
            return
        store.drop_variable("table")
        store.get_variable("table", dim=DIM, checkpoint=False).upsert([1], np.full((1, DIM), 7, np.float32))
        store.flush()
        assert reader.refresh()
        with pytest.raises(Closed, match="'table' was dropped"):
            followed.lookup([1])
        assert reader.variables["table"].lookup([1])[0, 0] == 7


def test_a_variable_joins_checkpoints_after_the_one_under_way(monkeypatch, open_store, tmp_path):
    """The key files that a checkpoint under way is about to link are not deleted, and the next delta is whole."""
    store = open_store(tmp_path / "store")
    store.get_variable("late", dim=DIM, checkpoint=False).upsert([1, 2], np.ones((2, DIM), np.float32))
    store.close()
    store = open_store(tmp_path / "store")
    store.get_variable("other", dim=DIM)
    reached, go_on, real = threading.Event(), threading.Event(), changes.ChangeLog.link_to

    def waiting(*arguments: Any) -> None:
        reached.set()
        assert go_on.wait(60)
        real(*arguments)

    monkeypatch.setattr(changes.ChangeLog, "link_to", waiting)
    pending = store.checkpoint(tmp_path / "first", block=False)
    assert reached.wait(60)
    threading.Timer(0.2, go_on.set).start()
    table = store.get_variable("late", checkpoint=True)
    first = pending.result()
    second = store.checkpoint(tmp_path / "second")
    assert sorted(told(second, first, "late")[0]) == sorted(table.export()[0].tolist()) == [1, 2]


def test_a_variable_that_was_made_again_outside_checkpoints_is_gone_from_the_next_delta(open_store, tmp_path):
    """The new one is in no checkpoint, and its epochs neither: so nothing said that the old one was dropped."""
    store = open_store(tmp_path / "store")
    fill(store, [1, 2], 1)
    fill(store, [3], 1, "other")
    first = store.checkpoint(tmp_path / "first")
    replica = open_store_from(first, tmp_path / "replica", open_store)
    store.drop_variable("table")
    store.get_variable("table", dim=DIM, checkpoint=False).upsert([1, 5], np.ones((2, DIM), np.float32))
    second = store.checkpoint(tmp_path / "second")
    assert told(second, first, "table") == ({}, [1, 2])
    replica.apply_delta(second)
    assert sorted(replica.variables) == ["other"]


def test_a_checkpoint_that_does_not_follow_is_refused_and_nothing_changes(open_store, tmp_path):
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other")
    fill(one, [1], 1)
    fill(other, [2], 2)
    a, b = one.checkpoint(tmp_path / "a"), other.checkpoint(tmp_path / "b")
    with pytest.raises(CheckpointNotFound, match=a.id):
        b.changes(a)
    with pytest.raises(CheckpointNotFound, match="does not record"):
        one.apply_delta(b)
    with pytest.raises(KeyError, match="no variable 'x'"):
        a.changes(a, variables=["x"])
    assert one.variables["table"].export()[0].tolist() == [1]


@pytest.mark.limits(**SMALL_BATCHES, change_bytes=180)
def test_old_epochs_are_forgotten_but_never_the_last(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    taken = []
    for turn in range(6):
        fill(store, np.arange(turn, 200, 7), turn)
        taken.append(store.checkpoint(tmp_path / f"{turn}"))
    assert len(told(taken[5], taken[4], "table")[0]) == 28
    with pytest.raises(CheckpointNotFound, match="or more checkpoints lie between than are recorded"):
        taken[5].changes(taken[0])
    kept = {path.name for path in (taken[5].path / "changes").iterdir()}
    assert kept == {path.name for path in (tmp_path / "store/live/changes").iterdir()}


def test_what_a_failed_checkpoint_began_is_part_of_the_next(monkeypatch, open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, [1, 2], 1)
    first = store.checkpoint(tmp_path / "a")
    fill(store, [2, 3], 2)
    (tmp_path / "file").touch()
    with pytest.raises(kvemb.errors.ColdStoreError):
        store.checkpoint(tmp_path / "file" / "b")
    fill(store, [4], 4)
    assert sorted(told(store.checkpoint(tmp_path / "b"), first, "table")[0]) == [2, 3, 4]


@pytest.mark.parametrize("devices", [None, ["cpu", "cpu", "cpu"]])
def test_a_warm_restore_brings_back_what_was_hot(open_store, tmp_path, devices):
    store = open_store(tmp_path / "store")
    table = store.get_variable("table", dim=DIM, hot_rows=64)
    table.upsert(np.arange(1000), np.ones((1000, DIM), np.float32))
    for _ in range(3):
        table.lookup(np.arange(500, 540))
    taken = store.checkpoint(tmp_path / "checkpoint")
    for warm in (False, True):
        again = kvemb.restore(taken, tmp_path / f"{warm}", warm=warm, memory_budget="8MiB")
        with again:
            back = again.get_variable("table", dim=DIM, hot_rows=192, devices=devices)
            assert (back.stats.rows_hot > 0) == warm
            back.lookup(np.arange(500, 540), touch=False)
            assert back.stats.hits == 40 * warm
            assert back.size() == 1000


@pytest.mark.parametrize("seed", quick(range(40), 5))
def test_files_between_two_points_have_every_key_that_changed(tmp_path, seed):
    """As spills go on while a point is written, files are joined, and checkpoints end epochs; in memory, no store."""
    chance, limits = np.random.default_rng(seed), Limits(**FEW_FILES)
    log = ChangeLog(tmp_path, [Epoch("0")], limits)
    # A point: its epochs, and the number of records that it holds. Key files are read when they are dropped later.
    points: list[tuple[list[Epoch], int]] = []
    records: list[tuple[str, int]] = []
    content: dict[str, set[int]] = {}

    def record(name: str, keys: Any) -> None:
        log.record(name, np.array(keys, np.uint64))
        records.extend((name, int(key)) for key in keys)

    def some() -> tuple[str, Any]:
        return str(chance.choice(["a", "b"])), chance.integers(0, 50, int(chance.integers(1, 5)))

    exact = 0
    for turn in range(40):
        for _ in range(int(chance.integers(0, 4))):
            record(*some())
        snapshot = {name: np.unique(chance.integers(0, 50, 3)).astype(np.uint64) for name in ("a", "b")}
        for name, keys in snapshot.items():
            records.extend((name, int(key)) for key in keys)
        sealed, held = log.seal_epoch(), len(records)
        for _ in range(int(chance.integers(0, 4))):
            record(*some())  # spilled while the point is written
        for name, keys in snapshot.items():
            log.add(sealed, name, keys)
        if chance.random() < 0.2:
            log.begin(f"{turn + 1}", sealed)
            sealed = [*sealed, Epoch(f"{turn + 1}")]
        for path in tmp_path.glob("*.keys"):
            if path.name not in content:
                content[path.name] = {int(key) for keys in read_keys(path) for key in keys}
        points.append((deepcopy(sealed), held))
        for back, (shown, before) in enumerate(reversed(points[:-1]), 1):
            for name in ("a", "b"):
                files = files_between(shown, sealed, name)
                if files is None:
                    assert back > 1, "the point before is always known"
                    continue
                changed = {key for owner, key in records[before:held] if owner == name}
                said = set().union(*(content[file] for file in files))
                assert changed <= said
                if back == 1:
                    assert changed == said
                    exact += 1
    assert exact == 2 * 39


def test_an_epoch_without_a_point_has_few_files_and_few_keys_in_memory(tmp_path):
    """Its files are joined while it lasts: a seal that opened thousands at once would fail. Those of a point stay."""
    log, chance = (
        ChangeLog(tmp_path, [Epoch("0")], Limits(change_files=8, change_buffer_keys=40)),
        np.random.default_rng(3),
    )
    names, most = [f"table{number}" for number in range(5)], 0
    records: dict[str, set[int]] = {name: set() for name in names}
    for turn in range(3):
        for _ in range(500):
            name, keys = str(chance.choice(names)), chance.integers(0, 10_000, 5).astype(np.uint64)
            log.record(name, keys)
            records[name] |= {*keys.tolist()}
            most = max(most, log.buffered_keys)
        if turn < 2:
            sealed = log.seal_epoch()  # its point is written while the next turn records
    assert most < 40
    assert len(list(tmp_path.glob("*.keys"))) <= 16 * len(names)
    log.link_to(tmp_path / "point", sealed)
    sealed = log.seal_epoch()
    assert all(len(changed.files) <= 16 for changed in sealed[-1].variables.values())
    for name, wanted in records.items():
        cleared, batches = changes.recorded(tmp_path, sealed, name)
        assert not cleared
        assert {int(key) for keys in batches for key in keys} == wanted
