"""Rolling an open store back to a mark."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from crashes import killed_at_each
from deltas import columns_of, fill
from histories import DIM, SMALL_PILES
from marked import MarkedHistory

import kvemb
from kvemb.durability.points import Points
from kvemb.errors import CheckpointNotFound, Closed, ColdStoreError, Corruption, MarkNotFound, Poisoned, ReadOnly
from kvemb.handle import inside

# How many random histories, and how many calls each has.
HISTORIES, STEPS = int(os.environ.get("KVEMB_MARK_HISTORIES", "3")), int(os.environ.get("KVEMB_MARK_STEPS", "25"))


@pytest.mark.limits(**SMALL_PILES, change_buffer_keys=64, change_files=4, change_exact_epochs=2, change_old_files=4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.parametrize("durability", ["checkpoint", "write"])
@pytest.mark.parametrize("devices", [None, ["cpu", "/CPU:0"]])
def test_after_any_history_every_row_is_that_of_the_mark(open_store, tmp_path, seed, durability, devices):
    chance = np.random.default_rng(seed)
    MarkedHistory(tmp_path, open_store, chance, devices, durability=durability, keep_marks=100).run(STEPS)


@pytest.mark.limits(**SMALL_PILES, change_buffer_keys=64, change_files=4, change_exact_epochs=2, change_old_files=4)
def test_after_a_short_history_every_row_is_that_of_the_mark(open_store, tmp_path):
    MarkedHistory(tmp_path, open_store, np.random.default_rng(1), None, durability="write").run(8)


def test_rows_counts_and_variables_go_back_and_everything_stays_valid(store):
    table = store.get_variable("table", dim=DIM, optimizer=kvemb.optimizers.Adam(0.1, bias_correction="global"))
    table.apply_gradients([1, 2, 3], np.ones((3, DIM)))
    dropped = fill(store, [7], 7, "dropped")
    before, mark = columns_of(store), store.mark()
    table.apply_gradients([3, 4], np.ones((2, DIM)))
    table.remove([1])
    made = fill(store, [5], 5, "made")
    store.drop_variable("dropped")
    store.rollback(mark)
    assert columns_of(store) == before
    table.apply_gradients([3], np.ones((1, DIM)))
    with pytest.raises(Closed, match="'made' did not exist at the mark"):
        made.lookup([5])
    with pytest.raises(Closed):
        dropped.lookup([7])
    assert store.variables["dropped"].lookup([7])[0, 0] == 7
    store.rollback(mark)
    assert columns_of(store) == before


def test_a_store_that_went_back_closes_as_any_other(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        fill(store, [1], 1)
        store.rollback(store.mark())
    assert not (tmp_path / "store" / "live").exists()
    assert open_store(tmp_path / "store").recovery is None


def test_rows_that_did_not_change_stay_hot(store):
    table = fill(store, range(100), 1)
    mark = store.mark()
    for _ in range(3):
        fill(store, range(10), 2)
        store.flush()
        fill(store, range(10, 20), 2)
        store.rollback(mark)
        assert store.stats.rows_hot == 80
        assert (table.lookup(range(100), touch=False)[:, 0] == 1).all()


def test_a_mark_of_another_branch_empties_the_hot_tier(store):
    """Key files of both branches have the same names."""
    table = fill(store, range(100), 1)
    first = store.mark("first")
    fill(store, range(10), 2)
    store.mark("second", block=True)
    store.rollback(first)
    fill(store, range(20, 30), 3)
    store.flush()
    store.rollback("second")
    assert table.lookup([5, 25])[:, 0].tolist() == [2, 1]


def test_changes_before_the_mark_are_in_the_next_delta_also_those_that_were_recorded_since(store, tmp_path):
    fill(store, range(100), 1)
    first = store.checkpoint(tmp_path / "first")
    fill(store, [1], 2)
    store.flush()
    fill(store, [2], 2)
    mark = store.mark()
    fill(store, [3], 2)
    store.flush()
    store.rollback(mark)
    fill(store, [4], 2)
    changes = store.checkpoint(tmp_path / "second").changes(first)
    assert [key for change in changes for key in change.keys.tolist()] == [1, 2, 4]


def test_what_was_read_ahead_before_is_not_used_after(store):
    table = store.get_variable("table", dim=DIM, hot_rows=16)
    table.upsert(range(1000), np.ones((1000, DIM)))
    mark = store.mark()
    table.upsert(range(1000), np.full((1000, DIM), 2))
    store.flush()
    ahead = store.variables["table"]
    ahead.prefetch(range(500))
    store.rollback(mark)
    assert (table.lookup(range(500))[:, 0] == 1).all()


def test_a_replica_follows_only_the_branch_that_it_is_on(store, open_store, tmp_path):
    fill(store, range(10), 1)
    common = store.checkpoint(tmp_path / "common")
    mark = store.mark()
    fill(store, range(5), 2)
    abandoned = store.checkpoint(tmp_path / "abandoned")
    store.rollback(mark)
    fill(store, [20], 3)
    later = store.checkpoint(tmp_path / "later")
    with kvemb.restore(common, tmp_path / "replica", memory_budget="8MiB") as replica:
        replica.apply_delta(later)
        assert columns_of(replica) == columns_of(store)
        with pytest.raises(CheckpointNotFound):
            replica.apply_delta(abandoned)
    with (
        kvemb.restore(abandoned, tmp_path / "other", memory_budget="8MiB") as replica,
        pytest.raises(CheckpointNotFound, match="went back to an earlier"),
    ):
        replica.apply_delta(later)


def test_readers_follow_and_keep_their_variables(store, open_store, tmp_path):
    fill(store, [1, 2], 1)
    store.mark("then", block=True)
    fill(store, [1], 2)
    store.checkpoint(tmp_path / "checkpoint")
    fill(store, [5], 5, "late")
    store.flush()
    reader = open_store(tmp_path / "store", follow=True)
    seen, late = reader.variables["table"], reader.variables["late"]
    assert seen.lookup([1, 2])[:, 0].tolist() == [2, 1]
    assert late.lookup([5])[0, 0] == 5
    store.rollback("then")
    assert reader.refresh()
    assert seen.lookup([1, 2])[:, 0].tolist() == [1, 1]
    with pytest.raises(Closed):
        late.lookup([5])


def test_a_push_after_a_rollback_is_a_delta_from_the_last_common_checkpoint(store, tmp_path):
    fill(store, range(2000), 1)
    with kvemb.CheckpointManager(tmp_path / "series") as series:
        series.save(store)
        series.push(tmp_path / "url")
        mark = store.mark()
        fill(store, range(50), 2)
        series.save(store)
        assert series.push(tmp_path / "url").deltas == 1
        store.rollback(mark)
        fill(store, range(100, 110), 3)
        saved = series.save(store)
        assert series.push(tmp_path / "url").deltas == 1
    with kvemb.CheckpointManager(tmp_path / "copy") as copy:
        assert copy.pull(tmp_path / "url").id == saved.id
    with kvemb.restore(tmp_path / "copy" / "00000003", tmp_path / "restored", memory_budget="8MiB") as restored:
        assert columns_of(restored) == columns_of(store)


def test_sightings_go_back(store):
    table = store.get_variable(
        "table", dim=DIM, optimizer=kvemb.optimizers.SGD(0.1), admission=kvemb.Admission(sightings=3)
    )
    table.apply_gradients([1], np.ones((1, DIM)))
    mark = store.mark()
    table.apply_gradients([1], np.ones((1, DIM)))
    store.flush()
    store.rollback(mark)
    table.apply_gradients([1], np.ones((1, DIM)))
    assert table.size() == 0
    table.apply_gradients([1], np.ones((1, DIM)))
    assert table.size() == 1


def test_a_variable_that_left_the_checkpoints_since_is_in_none_after_a_rollback(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        fill(store, [1], 1)
        fill(store, [1], 1, "other")
        first = store.checkpoint(tmp_path / "first")
        store.mark("then", block=True)
    store = open_store(tmp_path / "store")
    store.get_variable("table", checkpoint=False)
    other = store.get_variable("other", checkpoint=False)
    store.checkpoint(tmp_path / "second")
    store.rollback("then")
    third = store.checkpoint(tmp_path / "third")
    assert list(third.variables) == []
    assert {change.variable: change.removed.tolist() for change in third.changes(first)} == {
        "other": [1],
        "table": [1],
    }
    assert other.lookup([1])[0, 0] == 1


def test_a_variable_that_joined_the_checkpoints_since_is_in_all_after_a_rollback(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        store.get_variable("table", dim=DIM, checkpoint=False).upsert([1], np.ones((1, DIM)))
        first = store.checkpoint(tmp_path / "first")
        store.mark("then", block=True)
    store = open_store(tmp_path / "store")
    store.get_variable("table", checkpoint=True)
    store.rollback("then")
    second = store.checkpoint(tmp_path / "second")
    assert [change.keys.tolist() for change in second.changes(first)] == [[1]]


def test_attached_files_are_those_of_the_mark(store, tmp_path):
    fill(store, [1], 1)
    store.mark("best", files={"dense.bin": b"weights"}, extra={"epoch": 3})
    fill(store, [1], 2)
    store.flush()
    assert kvemb.Checkpoint.at(tmp_path / "store").extra == {}
    store.rollback("best")
    point = kvemb.Checkpoint.at(tmp_path / "store")
    assert (point.extra, point.files["dense.bin"].read_bytes()) == ({"epoch": 3}, b"weights")


def test_what_is_no_mark_of_the_store_changes_nothing(store, open_store, tmp_path):
    table = fill(store, [1], 1)
    mark = store.mark()
    with open_store(tmp_path / "other") as other, pytest.raises(MarkNotFound, match="is of the store"):
        other.rollback(mark)
    fill(store, [1], 2)
    store.drop_mark(mark)
    with pytest.raises(MarkNotFound, match="keep_marks=16"):
        store.rollback(mark)
    with pytest.raises(MarkNotFound, match="does not have the mark 'worst'"):
        store.rollback("worst")
    with pytest.raises(TypeError, match=r"must be a kvemb.Mark"):
        store.rollback(3)
    assert table.lookup([1])[0, 0] == 2
    with open_store(tmp_path / "store", follow=True) as reader, pytest.raises(ReadOnly):
        reader.rollback(mark)


@pytest.mark.parametrize("gone", [False, True])
def test_a_rollback_that_failed_is_recovered_from_unless_the_points_went_back(store, monkeypatch, gone):
    table = fill(store, range(100), 1)
    mark = store.mark(block=True)
    fill(store, range(100), 2)
    go_back = Points.go_back

    def failing(points: Points, *args: Any, **named: Any) -> None:
        if gone:
            go_back(points, *args, **named)
            raise TimeoutError  # by another thread
        raise ColdStoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Points, "go_back", failing)
        with pytest.raises(TimeoutError if gone else Poisoned):
            store.rollback(mark)
    if gone:
        with pytest.raises(Poisoned, match="half-way"):
            store.recover()
    else:
        store.recover()
        store.rollback(mark)
        assert table.lookup([1])[0, 0] == 1


def test_a_damaged_mark_changes_nothing(store):
    table = fill(store, range(100), 1)
    mark = store.mark(block=True)
    fill(store, range(100), 2)
    (file,) = (mark.path / "rows").glob("MANIFEST*")
    sound = file.read_bytes()
    file.write_bytes(sound[:-1])
    with pytest.raises(Corruption, match=str(file)):
        store.rollback(mark)
    assert (table.lookup(range(100))[:, 0] == 2).all()
    file.write_bytes(sound)
    store.rollback(mark)
    assert (table.lookup(range(100))[:, 0] == 1).all()


def test_rollbacks_leave_the_files_of_the_last_one_alone(store):
    fill(store, range(10), 1)
    mark = store.mark(block=True)
    for value in range(2, 5):
        fill(store, range(10), value)
        store.rollback(mark)
    inside(store).writer.submit(lambda: None).result()
    assert len(list((store.path / "live").iterdir())) == 1


def test_the_point_of_a_rollback_has_the_files_of_the_mark(store):
    fill(store, range(100), 1)
    mark = store.mark("best", files={"dense.bin": b"weights"}, block=True)
    fill(store, range(10), 2)
    store.rollback(mark)
    point = kvemb.Checkpoint.at(store.path)
    assert point.inventory == kvemb.Checkpoint(mark.path).inventory
    assert all(os.path.samefile(point.path / name, mark.path / name) for name in point.inventory)
    fill(store, range(20), 3)
    store.flush()
    assert kvemb.verify(mark.path, deep=True)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["write", "checkpoint"])
def test_a_kill_at_any_instant_leaves_one_of_both_states(open_store, tmp_path, durability):
    store = open_store(tmp_path / "store", durability=durability)
    fill(store, range(10), 1)
    mark = store.mark(block=True)
    at_mark = columns_of(store)
    fill(store, range(5), 2)
    store.flush()
    now = columns_of(store)
    calls = ["rename", "replace", "fsync", "unlink", "rmdir", "link", "mkdir"]
    found = set()
    for left in killed_at_each(calls, lambda: store.rollback(mark), tmp_path / "store", tmp_path / "copies"):
        with kvemb.open(left, memory_budget="8MiB", durability=durability) as reopened:
            columns = columns_of(reopened)
            assert columns in (at_mark, now), left
            found.add(columns == now)
            reopened.rollback(mark)
            assert columns_of(reopened) == at_mark
    assert found == {True, False}


@pytest.mark.slow
def test_calls_of_other_threads_go_on(store):
    """Rows are those before or after, and nothing of what came before the rollback is left."""
    table = fill(store, range(1000), 1)
    store.get_variable("small", dim=DIM, hot_rows=16).upsert(range(1000), np.ones((1000, DIM)))
    small, mark, errors, ended = store.variables["small"], store.mark(), list[BaseException](), threading.Event()

    def work(variable: Any) -> None:
        try:
            while not ended.is_set():
                keys = np.arange(500)
                variable.prefetch(keys)
                seen = variable.lookup(keys)[:, 0]
                assert np.isin(seen, [1, 2]).all()
                variable.upsert(keys, np.full((500, DIM), 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in (table, small)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        store.rollback(mark)
    ended.set()
    for thread in threads:
        thread.join()
    assert errors == []
    store.rollback(mark)
    for variable in (table, small):
        assert (variable.lookup(range(1000))[:, 0] == 1).all()
    store.check()
