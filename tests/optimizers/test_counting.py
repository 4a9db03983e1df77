"""The count of steps of bias_correction="global" is saved with its variable, and goes wherever that goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from crashes import copy_of_open

import kvemb
from kvemb import bulk
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.optimizers import Adam

BUDGET = "4MiB"
GLOBAL = Adam(0.1, bias_correction="global")


def train(table: kvemb.Variable, calls: int = 1) -> None:
    for _ in range(calls):
        table.apply_gradients(np.arange(5), np.ones((5, 2), np.float32))


def count_of(store: kvemb.Store) -> int:
    return inside(store.variables["table"]).storage.optimizer_steps


def made(store: kvemb.Store, **given: Any) -> kvemb.Variable:
    return store.get_variable("table", dim=2, **{"optimizer": GLOBAL, **given})


def test_calls_are_counted_that_train_rows(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = made(store)
        train(table, 3)
        table.apply_gradients([], np.empty((0, 2), np.float32))
        table.lookup([1])
        with pytest.raises(ValueError, match="grads must have shape"):
            table.apply_gradients([1], np.ones((1, 3), np.float32))
        assert count_of(store) == 3
        store.apply_gradients({table: ([1], np.ones((1, 2), np.float32))})
        assert count_of(store) == 4
        without = store.get_variable("without", dim=2, optimizer=Adam(0.1))
        train(without)
        assert inside(without).storage.optimizer_steps == 0


def test_a_late_row_takes_a_step_by_the_count(tmp_path):
    """torch.optim.SparseAdam's: (1 - beta_1) / sqrt(1 - beta_2) times the learning rate, once the count is large."""
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        table = made(store)
        inside(table).storage.advance(0, 100_000)
        train(table)
        np.testing.assert_allclose(table.lookup([0]), -0.1 * 0.1 / np.sqrt(0.001), rtol=1e-5)


def test_a_call_in_parts_is_one_step(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET, limits=Limits(call_rows=16)) as store:
        table = made(store)
        table.apply_gradients(np.arange(100), np.ones((100, 2), np.float32))
        assert count_of(store) == 1
        np.testing.assert_allclose(table.lookup(np.arange(100)), -0.1, rtol=1e-5)


def test_checkpoints_and_reopened_stores_go_on(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        train(made(store), 3)
        store.checkpoint(tmp_path / "1")
        train(made(store), 2)
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        assert count_of(store) == 5
        rows = made(store).lookup(np.arange(5))
    with kvemb.restore(tmp_path / "1", tmp_path / "restored", memory_budget=BUDGET) as store:
        assert count_of(store) == 3
        train(made(store), 2)
        np.testing.assert_array_equal(made(store).lookup(np.arange(5)), rows)


def test_the_log_brings_it_back(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET, durability="write") as store:
        table = made(store)
        train(table, 2)
        store.flush()
        train(table, 3)
        copy_of_open(tmp_path / "store", tmp_path / "crashed")
    with kvemb.open(tmp_path / "crashed", memory_budget=BUDGET) as store:
        assert count_of(store) == 5


def test_followers_and_replicas_have_it(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        train(made(store), 1)
        store.checkpoint(tmp_path / "1")
        with kvemb.open(tmp_path / "store", read_only=True, follow=True, memory_budget=BUDGET) as reader:
            made(reader)
            train(made(store), 2)
            store.checkpoint(tmp_path / "2")
            assert reader.refresh()
            assert count_of(reader) == 3
    with kvemb.restore(tmp_path / "1", tmp_path / "replica", memory_budget=BUDGET) as store:
        store.apply_delta(tmp_path / "2")
        assert count_of(store) == 3


def test_a_variable_made_like_another_has_it(tmp_path):
    with kvemb.open(tmp_path / "store", memory_budget=BUDGET) as store:
        train(made(store), 3)
        described = bulk.described(made(store))
    with kvemb.open(tmp_path / "other", memory_budget=BUDGET) as store:
        bulk.make(store, "table", described)
        assert count_of(store) == 3
        with pytest.raises(ValueError, match="optimizer_steps must be"):
            bulk.make(store, "other", {**described, "optimizer_steps": 2**61 + 1})
