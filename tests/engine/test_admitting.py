"""An Admission counts on where the last durable point was, however a store is opened again."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from crashes import copy_of_open

import kvemb
from kvemb.errors import Corruption
from kvemb.handle import inside

THIRD = kvemb.Admission(3, 4096)


def counting(store, admission=THIRD, name="v", **given):
    return store.get_variable(name, dim=1, optimizer=kvemb.optimizers.SGD(1.0), admission=admission, **given)


def sight(variable, *keys):
    """Train these keys, and return the keys that have a row."""
    variable.apply_gradients(keys, -np.ones((len(keys), 1), np.float32))
    return variable.export()[0].tolist()


def files_of(store):
    return sorted((store.path / "points" / f"{store.point:06d}").glob("sightings/*"))


def test_a_store_that_is_opened_again_counts_on(open_store, tmp_path):
    for _ in range(2):
        with open_store(tmp_path / "store") as store:
            assert sight(counting(store), 1, 2) == []
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store), 1) == [1]
        assert store.check(deep=True) is None
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store), 2, 3) == [1, 2]


def test_after_a_crash_sightings_are_those_of_the_durable_point(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    variable = counting(store)
    store.flush()
    sight(variable, 1, 2, 2)
    store.flush()  # nothing else changed
    point = store.point
    store.flush()
    assert store.point == point
    sight(variable, 1)
    with open_store(copy_of_open(tmp_path / "store", tmp_path / "crashed")) as crashed:
        after = counting(crashed)
        assert sight(after, 1) == [], "its second sighting is lost"
        assert sight(after, 1, 2) == [1, 2]


def test_a_log_brings_rows_back_and_sightings_go_back_to_the_durable_point(open_store, tmp_path):
    store = open_store(tmp_path / "store", durability="write")
    variable = counting(store)
    sight(variable, 1, 2)
    store.flush()
    assert sight(variable, 1, 1, 2) == [1]
    rows = [column.tolist() for column in variable.export(with_scores=True)]
    for place in ("one", "two"):
        with open_store(copy_of_open(tmp_path / "store", tmp_path / place), durability="write") as crashed:
            after = counting(crashed)
            assert [column.tolist() for column in after.export(with_scores=True)] == rows
            assert sight(after, 2) == [1]
            assert sight(after, 2) == [1, 2]


def test_a_snapshot_has_the_sightings_of_its_moment(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    variable = counting(store)
    sight(variable, 1, 2)
    pending = store.checkpoint(tmp_path / "checkpoint", block=False)
    sight(variable, 1)
    checkpoint = pending.result()
    for place, expected in ((checkpoint, []), (store.checkpoint(tmp_path / "later"), [1])):
        with kvemb.restore(place, tmp_path / f"{place.id}", memory_budget="8MiB") as restored:
            assert sight(counting(restored), 1) == expected
            assert sight(counting(restored), 1) == [1]


def test_an_unchanged_file_is_linked_and_a_point_without_the_admission_keeps_it(open_store, tmp_path, caplog):
    store = open_store(tmp_path / "store")
    variable = counting(store)
    sight(variable, 1, 1)
    store.flush()
    (before,) = files_of(store)
    inode = before.stat().st_ino
    variable.upsert([5], [[1.0]])
    store.flush()
    assert [path.stat().st_ino for path in files_of(store)] == [inode]
    store.close()
    with caplog.at_level(logging.WARNING, "kvemb"), open_store(tmp_path / "store") as store:
        counting(store, None)
        assert "'v' has stored sightings, but was opened without an Admission" in caplog.text
        assert sight(store.variables["v"], 2) == [2, 5]
    with open_store(tmp_path / "store") as store:
        assert [path.stat().st_ino for path in files_of(store)] == [inode]
        assert sight(counting(store), 1) == [1, 2, 5]


def test_another_number_of_sightings_keeps_the_counters_and_another_size_begins_anew(open_store, tmp_path, caplog):
    with open_store(tmp_path / "store") as store:
        sight(counting(store), 1, 2, 2, 2, 2)
    with caplog.at_level(logging.WARNING, "kvemb"), open_store(tmp_path / "store") as store:
        assert sight(counting(store, kvemb.Admission(2, 4096)), 1) == [1, 2]
        assert caplog.text == ""
    with open_store(tmp_path / "store") as store:
        variable = counting(store, kvemb.Admission(2, 8192))
        assert "the sightings of 'v' start again at 0: 4,096 bytes of counters are stored" in caplog.text
        variable.remove([1, 2])
        assert sight(variable, 1) == []
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store, kvemb.Admission(2, 8192)), 1) == [1]


def test_a_variable_that_was_dropped_takes_its_sightings_with_it(open_store, tmp_path):
    for reopened in (False, True):
        store = open_store(tmp_path / f"{reopened}")
        free = store.budget.free
        sight(counting(store), 1, 1)
        store.flush()
        if reopened:
            store.close()
            store = open_store(tmp_path / f"{reopened}")
        store.drop_variable("v")
        assert files_of(store) == []
        assert store.budget.free == free
        assert sight(counting(store), 1) == []


def test_a_variable_in_memory_has_no_file_and_one_left_out_of_checkpoints_has_one_in_points_alone(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    sight(counting(store, kv_creator=kvemb.MemoryCreator()), 1)
    sight(counting(store, name="own", checkpoint=False), 1, 1)
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    assert not (checkpoint.path / "sightings").exists()
    assert [*inside(checkpoint).sightings] == []
    assert len(files_of(store)) == 1
    store.close()
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store, name="own"), 1) == [1]


def test_a_reader_opens_with_an_admission_that_it_does_not_use(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        sight(counting(store), 1, 2, 2, 2)
    with open_store(tmp_path / "store", read_only=True) as reader:
        assert counting(reader).export()[0].tolist() == [2]


def test_a_key_that_was_removed_is_as_new(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        variable = counting(store)
        assert sight(variable, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4) == [1, 2]
        variable.remove([1, 3])
        assert sight(variable, 1, 1, 3, 3) == [2]
        store.flush()
        variable.remove([3])  # it has no row, so that nothing else changes
        point = store.point
        store.flush()
        assert store.point > point
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store), 3, 3) == [2]
        assert sight(counting(store), 1, 3, 4) == [1, 2, 3, 4]


def test_clear_forgets_all_sightings(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store), 1, 1, 1, 2, 2) == [1]
        store.flush()
        assert files_of(store)
        counting(store).clear()
        store.flush()
        assert files_of(store) == []
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store), 1, 1, 2, 2) == []
        assert sight(counting(store), 1, 2) == [1, 2]


def test_restrict_leaves_sightings(open_store, tmp_path):
    variable = counting(open_store(tmp_path / "store"), restrict_policy=kvemb.FrequencyRestrictPolicy)
    sight(variable, 1, 1, 1, 2, 2)
    variable.restrict(0)
    assert sight(variable, 1, 2) == [1, 2]


def brought(open_store, path, first, second, admitted):
    """A replica of the first checkpoint, brought to the second with or without the Admission, and opened again."""
    kvemb.restore(first, path, memory_budget="8MiB").close()
    with open_store(path) as replica:
        if admitted:
            counting(replica)
        replica.apply_delta(second)
    return open_store(path)


# What the trainer does between two checkpoints, and which rows a replica of the second has after sightings of 1, 1, 2.
BETWEEN = [
    (lambda variable: variable.clear(), []), (lambda variable: variable.remove([1]), [2]),
    (lambda variable: sight(variable, 4, 5), [1, 2]), (lambda variable: sight(variable, 2), [1, 2]),
]  # fmt: skip


@pytest.mark.independent
@pytest.mark.parametrize(("between", "rows"), BETWEEN)
@pytest.mark.parametrize("admitted", [True, False])
def test_a_replica_counts_on_and_forgets_as_the_delta_that_was_applied(open_store, tmp_path, admitted, between, rows):
    trainer = open_store(tmp_path / "trainer")
    variable = counting(trainer)
    sight(variable, 1, 1, 1, 2, 2)
    first = trainer.checkpoint(tmp_path / "first")
    between(variable)
    second = trainer.checkpoint(tmp_path / "second")
    with brought(open_store, tmp_path / "replica", first, second, admitted) as replica:
        assert sight(counting(replica), 1, 1, 2) == rows


@pytest.mark.parametrize("admitted", [True, False])
def test_a_replica_counts_anew_as_the_checkpoint_that_was_applied(open_store, tmp_path, admitted):
    trainer = open_store(tmp_path / "trainer")
    sight(counting(trainer), 1, 1)
    first = trainer.checkpoint(tmp_path / "first")
    trainer.close()
    trainer = open_store(tmp_path / "trainer")
    sight(counting(trainer, kvemb.Admission(3, 8192)))
    second = trainer.checkpoint(tmp_path / "second")
    assert inside(second).sightings == {}
    with brought(open_store, tmp_path / "replica", first, second, admitted) as replica:
        assert sight(counting(replica), 1) == [], "its first sighting"


def test_damaged_sightings_are_named_and_do_not_keep_the_rows_from_being_opened(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        sight(counting(store), 1, 1, 2, 2, 2)
    (path,) = (tmp_path / "store").glob("points/*/sightings/*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert any(str(path) in line for line in kvemb.verify(tmp_path / "store", deep=True).findings)
    with open_store(tmp_path / "store") as store:
        free = store.budget.free
        with pytest.raises(Corruption, match=f"{path.name}, with the sightings .* another memory_bytes"):
            counting(store)
        assert store.budget.free == free
        assert counting(store, None).export()[0].tolist() == [2]
    done = kvemb.repair(tmp_path / "store", tmp_path / "repaired")
    assert any(path.name in line for line in done.damages)
    with open_store(tmp_path / "repaired") as store:
        assert sight(counting(store), 1) == [2]
        assert store.check(deep=True) is None
    with open_store(tmp_path / "store") as store:
        assert sight(counting(store, kvemb.Admission(1, 8192)), 1) == [1, 2]
