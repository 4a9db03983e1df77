"""Pooled lookups against a plain model, and PyTorch where it is installed; tiered equals all hot, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pooled import pooled

import kvemb
from kvemb.optimizers import Adagrad
from kvemb.pooling.given_bags import combined, given_bags, with_default, without_weights_up_to_zero

SEED = kvemb.RandomNormal(0.0, 0.5, seed=4)
NUMBERS = itertools.count()
COMBINERS = st.sampled_from(["mean", "sum", "sqrtn"])
WEIGHTS = st.floats(-1, 2, width=16)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A function that makes a variable twice: all hot, and with 16 of 100 rows hot, over two devices if wanted."""
    with kvemb.open(tmp_path_factory.mktemp("pooling") / "store", memory_budget="16MiB") as store:

        def make(dim=3, **arguments):
            number, both = next(NUMBERS), []
            for tier, few in {"hot": {"hot_rows": 1024}, "tiered": {"hot_rows": 16} | arguments}.items():
                table = store.get_variable(
                    f"{tier}{number}", dim=dim, initializer=SEED, optimizer=Adagrad(0.3, 0.1),
                    restrict_policy=kvemb.FrequencyRestrictPolicy, **few,
                )  # fmt: skip
                table.upsert(np.arange(-50, 50), np.random.default_rng(dim).normal(size=(100, dim)).astype(np.float32))
                both.append(table)
            return both

        yield make


@pytest.fixture(scope="module")
def both(pair):
    """One pair for all examples of a property."""
    return pair()


@st.composite
def bags(draw):
    """Bags of few ids, some of them absent (>= 50), some bags empty, with or without weights."""
    sizes = draw(st.lists(st.integers(0, 5), max_size=6))
    total = sum(sizes)
    ids = draw(st.lists(st.integers(-50, 60), min_size=total, max_size=total))
    weights = draw(st.none() | st.lists(WEIGHTS, min_size=total, max_size=total))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.array(ids, np.int64), offsets, None if weights is None else np.array(weights, np.float32)


def expected_of(table, ids, offsets, weights, combiner, max_norm, *, safe=False, default=None):
    schema = table.tables[0].schema
    wanted = given_bags(schema, ids, offsets, weights, last_included=True)
    if safe and combiner != "sum":
        wanted = without_weights_up_to_zero(wanted)
    if safe and default is not None:
        wanted = with_default(wanted, default, None)
    most = np.inf if max_norm is None else max_norm
    return pooled(table.lookup(wanted.keys, touch=False), combined(wanted, combiner, most, schema.slot_dtype))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(bags(), COMBINERS, st.none() | st.sampled_from([0.4, 1.0]), st.none() | st.integers(-60, 60))
def test_bags_are_pooled_as_the_model_says_in_every_tier(both, several, combiner, max_norm, default):
    hot, tiered = both
    ids, offsets, weights = several
    for table in (hot, tiered):
        got = kvemb.embedding_lookup_sparse(table, ids, offsets[:-1], weights, combiner, max_norm)
        assert got.values.tobytes() == expected_of(table, ids, offsets, weights, combiner, max_norm).tobytes()
        got = kvemb.safe_embedding_lookup_sparse(
            table, ids, offsets, weights, combiner, max_norm, default, include_last_offset=True
        )
        model = expected_of(table, ids, offsets, weights, combiner, max_norm, safe=True, default=default)
        assert got.values.tobytes() == model.tobytes()
        assert got.shape == (len(offsets) - 1, 3)
    for one, other in zip(hot.export(with_scores=True), tiered.export(with_scores=True), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_training_through_bags_is_the_same_in_every_tier(pair, devices):
    hot, tiered = pair(5, devices=devices)
    draw = np.random.default_rng(3)
    for step in range(20):
        sizes = draw.integers(0, 8, 10)
        ids, offsets = draw.integers(-50, 70, sizes.sum()), np.cumsum(sizes) - sizes
        weights = draw.uniform(0.1, 1, len(ids)).astype(np.float32) if step % 2 else None
        combiner = ("mean", "sum", "sqrtn")[step % 3]
        one, other = (
            kvemb.embedding_lookup_sparse(table, ids, offsets, weights, combiner, 1.5 if step % 4 == 0 else None)
            for table in (hot, tiered)
        )
        assert one.values.tobytes() == other.values.tobytes()
        for looked_up in (one, other):
            looked_up.apply_gradients(looked_up.values - 1)
    got = [table.export(with_slots=True, with_scores=True) for table in (hot, tiered)]
    np.testing.assert_equal(got[0], got[1])


def test_single_ids_keep_their_shape_and_count_their_uses(pair):
    hot, tiered = pair(2)
    ids = np.array([[3, 3, 70], [-5, 3, 4]])
    for table in (hot, tiered):
        before = table.restrict_policy.status(ids)
        rows = table.lookup(ids, touch=False)
        got = kvemb.embedding_lookup(table, ids)
        assert got.values.tobytes() == rows.tobytes()
        assert (table.restrict_policy.status(ids) - before)[0, 0] == 3
        unique = kvemb.embedding_lookup_unique(table, ids)
        assert unique.values.tobytes() == rows.tobytes()
        assert (table.restrict_policy.status(ids) - before)[0, 0] == 4
        kvemb.embedding_lookup(table, ids, touch=False)
        kvemb.embedding_lookup_sparse(table, ids.reshape(-1), [0], touch=False)
        assert (table.restrict_policy.status(ids) - before)[0, 0] == 4
        clipped = kvemb.embedding_lookup(table, ids, 0.3).values
        norms = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
        np.testing.assert_allclose(clipped, rows * np.minimum(1, 0.3 / norms), rtol=1e-6)
        np.testing.assert_array_equal(clipped, kvemb.embedding_lookup_unique(table, ids, 0.3).values)
        np.testing.assert_array_equal(table.lookup(ids, touch=False), rows)
        assert kvemb.embedding_lookup(table, 7).shape == (2,)
        assert kvemb.embedding_lookup(table, np.empty((0, 3), np.int64)).shape == (0, 3, 2)


def test_combiners_weights_and_defaults_of_a_small_example(store):
    words = store.get_variable("words", dim=1)
    words.upsert([1, 2, 3], [[1.0], [2], [4]])
    look = kvemb.embedding_lookup_sparse
    assert look(words, [1, 2, 3, 1], [0, 2, 2]).values.tolist() == [[1.5], [0], [2.5]]
    assert look(words, [1, 2], [0], [3.0, 1], "sum").values.tolist() == [[5]]
    assert look(words, [1, 2], [0], [3.0, 1]).values.tolist() == [[1.25]]
    assert look(words, [1, 2], [0], [3.0, 4], "sqrtn").values == pytest.approx(11 / 5)
    assert look(words, [1, 2], [0], [1.0, -1]).values.tolist() == [[0]]  # the weights sum to zero
    safe = kvemb.safe_embedding_lookup_sparse
    assert safe(words, [1, 2, 3], [0, 2, 2], [1.0, -1, 0], default_id=3).values.tolist() == [[1], [4], [4]]
    assert safe(words, [1, 2, 3], [0, 2, 2], [1.0, -1, 1], "sum").values.tolist() == [[-1], [0], [4]]
