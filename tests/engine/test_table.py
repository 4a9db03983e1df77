"""An open variable inside its store: what it tells, its optimizer, and what is left of it when it is dropped."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kvemb
from kvemb import FrequencyRestrictPolicy
from kvemb.errors import Closed, ReadOnly, SchemaMismatch
from kvemb.handle import inside
from kvemb.optimizers import SGD, Adagrad
from tests.test_variable import values_of


@pytest.fixture
def table(make):
    """100 rows, most of them cold."""
    variable = make(restrict_policy=FrequencyRestrictPolicy, optimizer=Adagrad(0.5, 0.1))
    variable.upsert(np.arange(100), values_of(100))
    return variable


# What it is made of.


def test_its_entry_of_a_durable_point_has_the_numbers_of_now(table):
    inner = inside(table)
    before = inner.entry()
    table.lookup([1])
    table.remove([2, 3])
    table.optimizer = Adagrad(0.25, 0.1)
    after = inner.entry()
    assert (before.rows, after.rows) == (100, 98)
    assert after.step == before.step + 1
    assert before.optimizer != after.optimizer
    assert after.optimizer["learning_rate"] == 0.25


def test_its_part_of_a_checkpoint_asks_for_the_entry_when_it_is_written(table):
    part = inside(table).part()
    table.remove([2])
    assert (part.name, part.schema) == (table.name, inside(table).schema)
    assert part.entry().rows == 99


# Its end.


def test_what_was_dropped_keeps_its_counts_and_refuses_the_rest(store, table):
    inner, name = inside(table), table.name
    assert not inner.ended
    table.lookup([1])
    store.drop_variable(name)
    assert inner.ended
    assert inner.stats().hits + inner.stats().misses == 1
    assert inner.name == name
    for use in (
        inner.entry,
        lambda: inner.restrict(1, None),
        lambda: inner.scores([1]),
        lambda: inner.record_uses([1]),
    ):
        with pytest.raises(Closed, match="dropped"):
            use()


def test_the_bytes_of_cold_rows_are_those_of_before_the_store_closed(store):
    variable = store.get_variable("cold", dim=3, hot_rows=16)
    variable.upsert(np.arange(100), values_of(100))
    store.flush()
    inner = inside(variable)
    inner.keep_bytes_cold()
    kept = inner.stats().bytes_cold
    assert kept > 0
    variable.clear()
    store.flush()
    inner.keep_bytes_cold()
    assert inner.stats().bytes_cold == kept


# Its counts, and another learning rate.


def test_the_next_durable_point_records_the_new_numbers(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    store.get_variable("x", optimizer=SGD(1.0)).optimizer = SGD(0.5)
    store.flush()
    store.variables["x"].optimizer = SGD(0.25)
    store.close(flush=False)
    store = open_store(tmp_path / "store")
    assert store.variables["x"].optimizer == SGD(0.5)
    store.variables["x"].optimizer = SGD(0.125)
    store.checkpoint(tmp_path / "checkpoint")
    with kvemb.open(tmp_path / "checkpoint", read_only=True) as reader:
        assert reader.variables["x"].optimizer == SGD(0.125)


@pytest.mark.parametrize("reopened", [False, True])
def test_get_variable_takes_the_numbers_it_is_given(open_store, tmp_path, reopened):
    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", optimizer=SGD(1.0))
    if reopened:
        store.close()
        store = open_store(tmp_path / "store")
    variable = store.get_variable("x", optimizer=SGD(0.5))
    assert store.get_variable("x") is variable, "none are asked for"
    assert variable.optimizer == SGD(0.5)
    variable.apply_gradients([1], [[1.0]])
    assert variable.lookup([1]).tolist() == [[-0.5]]


def test_who_may_not_change_rows_may_not_change_the_optimizer(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", optimizer=SGD(1.0))
    store.close()
    with pytest.raises(Closed):
        variable.optimizer = SGD(0.5)
    reader = open_store(tmp_path / "store", read_only=True)
    with pytest.raises(ReadOnly):
        reader.variables["x"].optimizer = SGD(0.5)
    assert reader.variables["x"].optimizer == SGD(1.0)
    # A server may have the trainer's own line.
    assert reader.get_variable("x", optimizer=SGD(0.5)) is reader.variables["x"]


def test_a_follower_sees_the_trainers_numbers(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    variable = store.get_variable("x", optimizer=SGD(1.0))
    store.flush()
    follower = open_store(tmp_path / "store", follow=True)
    assert follower.variables["x"].optimizer == SGD(1.0)
    variable.optimizer = SGD(0.5)
    store.flush()
    assert follower.refresh()
    assert follower.variables["x"].optimizer == SGD(0.5)


def test_another_class_of_optimizer_is_refused(make):
    variable, bare = make(optimizer=SGD(1.0)), make()
    for other in (Adagrad(), Adagrad(1.0)):
        with pytest.raises(SchemaMismatch, match=r"optimizer=SGD.* got optimizer=Adagrad.*kvemb migrate --optimizer"):
            variable.optimizer = other
    with pytest.raises(SchemaMismatch, match=r"optimizer=None, got optimizer=SGD"):
        bare.optimizer = SGD()
    for wrong in (None, 0.1, "sgd"):
        with pytest.raises(TypeError, match=r"optimizer must be an Optimizer, got .*Adagrad"):
            variable.optimizer = wrong
    with pytest.raises(TypeError, match=r"got the class SGD; use kvemb\.optimizers\.SGD\(\)"):
        variable.optimizer = SGD
    assert variable.optimizer == SGD(1.0)
    assert bare.optimizer is None


def test_a_learning_rate_may_change_from_one_step_to_the_next(make):
    variable, grads = make(optimizer=SGD(1.0)), np.ones((100, 3), np.float32)
    keys = np.arange(100)
    variable.apply_gradients(keys, grads)
    variable.optimizer = SGD(0.25)
    assert variable.optimizer == SGD(0.25)
    variable.apply_gradients(keys, grads)
    np.testing.assert_array_equal(variable.lookup(keys), np.full((100, 3), -1.25))


def test_slots_of_new_rows_begin_as_the_new_optimizer_says(make):
    variable = make(optimizer=Adagrad(0.5, initial_accumulator_value=0.25))
    variable.upsert([1], values_of(1))
    variable.optimizer = Adagrad(0.5, initial_accumulator_value=4.0)
    variable.upsert([1, 2], values_of(2))
    slots = variable.export(with_slots=True)[2]["accumulator"]
    assert slots.tolist() == [[0.25] * 3, [4.0] * 3]


@pytest.mark.limits(call_rows=8)
def test_one_call_takes_one_learning_rate(make):
    variable, keys = make(optimizer=SGD(1.0)), np.arange(400)
    training = threading.Event()
    training.set()

    def change():
        while training.is_set():
            variable.optimizer = SGD(3.0)
            variable.optimizer = SGD(1.0)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(5):
            variable.apply_gradients(keys, np.ones((400, 3), np.float32))
            assert len(np.unique(variable.lookup(keys))) == 1
    finally:
        training.clear()
        changing.join()


def test_stats_tell_hits_from_misses(table):
    before = table.stats
    table.lookup(np.arange(100))
    table.lookup([5000, 5000])
    after = table.stats
    assert after.hits + after.misses - before.hits - before.misses == 100
    assert after.absent - before.absent == 2
    kvemb.embedding_lookup_sparse(table, [5000, 1, 5001, 5000, 2], [0, 3], combiner="sum")
    pooled = table.stats
    assert pooled.absent - after.absent == 3
    assert pooled.hits + pooled.misses - after.hits - after.misses == 2
    assert after.rows == 100
    assert after.promotions > before.promotions
    assert after.rows_hot <= sum(t.capacity_rows for t in table.tables)
    assert after.bytes_hot == sum(t.nbytes for t in table.tables)
    after.hits = -1
    assert table.stats.hits >= 0, "a copy"
