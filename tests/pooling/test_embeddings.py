"""What lookups return: gradients against finite differences, steps, and rows written back by several workers."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kvemb
from kvemb.backends import cpu_bags, cpu_rows
from kvemb.optimizers import SGD

IDS, OFFSETS = np.array([3, 1, 3, 7, 2, 3, 9]), np.array([0, 3, 3, 5])
WEIGHTS = np.array([0.5, 2, 1, -1, 0.25, 3, 1])


@pytest.fixture
def table(store):
    """Rows of float64; 9 is absent."""
    start = kvemb.RandomNormal(0.0, 1.0, seed=2)
    variable = store.get_variable("rows", value_dtype="float64", dim=4, initializer=start, optimizer=SGD(1.0))
    variable.upsert(np.arange(8), np.random.default_rng(1).normal(size=(8, 4)))
    return variable


def looked_up(table, kind, max_norm):
    if kind == "single":
        return kvemb.embedding_lookup(table, IDS, max_norm)
    if kind == "unique":
        return kvemb.embedding_lookup_unique(table, IDS.reshape(7, 1), max_norm)
    if kind == "safe":
        return kvemb.safe_embedding_lookup_sparse(table, IDS, OFFSETS, WEIGHTS, "mean", max_norm, 2)
    weights = None if kind.startswith("plain") else WEIGHTS
    return kvemb.embedding_lookup_sparse(table, IDS, OFFSETS, weights, kind.split()[1], max_norm)


KINDS = [
    "single",
    "unique",
    "safe",
    *(f"{form} {how}" for form in ("plain", "weighted") for how in ("sum", "mean", "sqrtn")),
]


@pytest.mark.independent
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_norm", [None, 1.2])
def test_gradients_are_those_of_finite_differences(table, kind, max_norm):
    result = looked_up(table, kind, max_norm)
    grads = np.random.default_rng(3).normal(size=result.shape)
    keys, got = result.row_gradients(grads)
    assert len(np.unique(keys)) == len(keys)
    step, rows = 1e-6, table.lookup(keys)
    for number, key in enumerate(keys):
        for column in range(4):
            values = []
            for sign in (1, -1):
                moved = rows[number].copy()
                moved[column] += sign * step
                table.upsert([key], [moved])
                values.append(float(np.sum(looked_up(table, kind, max_norm).values * grads)))
            table.upsert([key], [rows[number]])
            assert got[number, column] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_the_row_gradients(table, kind):
    result = looked_up(table, kind, None)
    grads = np.random.default_rng(3).normal(size=result.shape)
    keys, rows = result.row_gradients(grads)
    before = table.lookup(keys)
    result.apply_gradients(grads)
    np.testing.assert_array_equal(table.lookup(keys), before - rows)


@pytest.mark.limits(hot_parallel_keys=7)
def test_gradients_are_summed_over_the_cores_from_the_limit_of_the_store(table, monkeypatch):
    over_cores, run_parts = [], cpu_bags.run_parts

    def watched(work, *arguments):
        over_cores.append(len(ids))
        run_parts(work, *arguments)

    monkeypatch.setattr(cpu_rows, "cores", lambda: 2)
    monkeypatch.setattr(cpu_bags, "run_parts", watched)
    for ids in (IDS, IDS[:6]):
        kvemb.embedding_lookup(table, ids).row_gradients(np.ones((len(ids), 4)))
    assert over_cores == [len(IDS)]


def test_gradients_of_bags_equal_those_of_rows_bit_for_bit(store):
    """However many threads sum them."""
    table = store.get_variable("many", dim=3, optimizer=SGD(1.0))
    draw = np.random.default_rng(4)
    ids, offsets = draw.integers(0, 900, 40_000), np.arange(0, 40_000, 20)
    result = kvemb.embedding_lookup_sparse(table, ids, offsets, combiner="sum")
    grads = draw.normal(size=result.shape).astype(np.float32)
    result.apply_gradients(grads)
    other = store.get_variable("other", dim=3, optimizer=SGD(1.0))
    other.apply_gradients(ids, np.repeat(grads, 20, axis=0))
    np.testing.assert_array_equal(table.lookup(np.arange(900)), other.lookup(np.arange(900)))


def test_it_is_an_array_to_numpy(table):
    result = kvemb.embedding_lookup(table, IDS)
    assert np.asarray(result).shape == result.shape == (7, 4)
    assert repr(result) == "<kvemb.Embeddings (7, 4) of 'rows'>"
    assert result.variable is table


def test_empty_lookups_have_empty_gradients(table):
    for result in (kvemb.embedding_lookup(table, []), kvemb.embedding_lookup_sparse(table, [], [], max_norm=1.0)):
        keys, grads = result.row_gradients(np.empty((0, 4)))
        assert (keys.shape, grads.shape) == ((0,), (0, 4))
        result.apply_gradients(np.empty((0, 4)))


@pytest.mark.parametrize("bp_v2", [False, True])
def test_two_workers_that_write_back_lose_nothing_with_bp_v2(store, bp_v2):
    """Each adds 1 to every row 50 times, after both have read: rows begin as the initializer's, 4 and absent."""
    table = store.get_variable("shared", dim=2, bp_v2=bp_v2, initializer=4.0)
    ids, together = np.array([5, 6, 5]), threading.Barrier(2, timeout=60)

    def work():
        for _ in range(50):
            rows = kvemb.embedding_lookup(table, ids)
            together.wait()
            rows.update(rows.values + 1)
            together.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Twice as many for the id that occurs twice; without bp_v2 the last writer wins.
    assert table.lookup([5, 6])[:, 0].tolist() == ([204, 104] if bp_v2 else [54, 54])
