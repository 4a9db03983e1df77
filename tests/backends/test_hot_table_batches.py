"""What contracts.HotTable promises of pooled lookups, and of large batches, for every implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_optimizer import single
from hot_suite import (
    LEAST,
    MOST,
    assert_same,
    many,
    random_keys,
    rows_of,
)
from pooled import pooled
from quick import quick
from schemas import schema_of

from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import Adagrad
from kvemb.restrict import ScoreRule
from kvemb.rows.bags import Bags, RowsBeside
from kvemb.rows.hashing import Unique

# Pooling.


def bags_of(sizes: Any, dtype: Any, *, weighted: bool, divided: bool, most_norm: float = np.inf) -> Bags:
    """Bags of these sizes with some weights and divisors, one divisor 0."""
    offsets, draw = np.concatenate([[0], np.cumsum(sizes)]), np.random.default_rng(7)
    weights = draw.uniform(-1, 2, offsets[-1] if weighted else 0).astype(dtype)
    divisors = draw.integers(0, 4, len(sizes) if divided else 0).astype(dtype)
    return Bags(offsets, weights, divisors, most_norm)


@pytest.mark.parametrize("name", quick(["float32", "float64", "float16", "bfloat16"]))
@pytest.mark.parametrize("dim", [1, 3, 33])
@pytest.mark.parametrize("form", ["plain", "weighted", "divided", "clipped", "all"])
def test_rows_of_a_bag_are_pooled_in_order(kind, name, dim, form):
    schema = schema_of(name, dim)
    table = kind(schema, 256, 256)
    draw = np.random.default_rng(dim)
    rows = rows_of(schema, random_keys(100), 1.0)
    CpuRows().assign(rows, np.arange(100), draw.normal(size=(100, dim)).astype(schema.value_dtype), 0)
    table.insert(rows)
    sizes = [0, 3, 1, 0, 20, 5, 0]
    bags = bags_of(
        sizes, schema.slot_dtype, weighted=form in ("weighted", "all"), divided=form in ("divided", "all"),
        most_norm=0.9 if form in ("clipped", "all") else np.inf,
    )  # fmt: skip
    chosen = draw.integers(0, 100, 29)
    out = np.full((7, dim), 9, schema.value_dtype)
    assert table.pool(rows.keys[chosen], bags, None, out, None, 0.0).tolist() == []
    assert out.tobytes() == pooled(rows.embeddings()[chosen], bags).tobytes()


def test_a_bag_takes_rows_from_beside_the_table_and_names_those_that_are_nowhere(kind):
    schema = schema_of("float32", 2)
    table, rows = kind(schema, 64, 64), rows_of(schema, np.arange(20), 5.0)
    CpuRows().assign(rows, np.arange(20), np.arange(40, dtype=np.float32).reshape(20, 2), 0)
    table.insert(rows)
    keys = np.array([3, 100, 4, 7, 101, 3, 5])
    bags = bags_of([2, 2, 2, 1], np.float32, weighted=False, divided=False)
    out = np.zeros((4, 2), np.float32)
    assert table.pool(keys, bags, None, out, ScoreRule.COUNT, 0.0).tolist() == [1, 4]
    assert out[[1, 3]].tolist() == [[22, 24], [10, 11]]
    assert table.scores(table.find(np.array([3, 4, 7, 5, 8]))).tolist() == [7, 6, 6, 6, 5]
    beside = RowsBeside(np.array([-1, 1, -1, -1, 0, 2, -1]), np.array([[1, 1], [2, 2], [0.5, 0.5]], np.float32))
    assert table.pool(keys, bags, beside, out, ScoreRule.LAST_USE, 9.0).tolist() == []
    assert out.tolist() == [[8, 9], [22, 24], [1.5, 1.5], [10, 11]]
    assert table.scores(table.find(np.array([3, 4, 7, 5, 8]))).tolist() == [9, 9, 9, 9, 5]
    none = bags_of([0, 0], np.float32, weighted=False, divided=False)
    assert len(table.pool(keys[:0], none, None, out[:2], ScoreRule.COUNT, 0.0)) == 0
    assert out[:2].tolist() == [[0, 0], [0, 0]]


def test_a_large_pool_equals_many_small_ones(kind):
    schema, count = schema_of("float32", 5), many(kind)
    keys = random_keys(5000)
    draw = np.random.default_rng(3)
    table, wanted = kind(schema, 8192, 8192), draw.choice(keys, count)
    rows = rows_of(schema, keys, 0.5)
    CpuRows().assign(rows, np.arange(5000), draw.normal(size=(5000, 5)).astype(np.float32), 0)
    table.insert(rows)
    absent = np.sort(draw.choice(count, 50, replace=False))
    wanted[absent] = random_keys(50, 9)
    cuts = np.sort(draw.integers(0, count, count // 10))
    cuts[: count // 50] = 0  # many empty bags, and one large one
    sizes = np.diff(np.concatenate([[0], cuts, [count]]))
    bags = bags_of(sizes, np.float32, weighted=True, divided=True)
    out = np.zeros((len(sizes), 5), np.float32)
    assert table.pool(wanted, bags, None, out, ScoreRule.COUNT, 0.0).tolist() == absent.tolist()
    whole = np.setdiff1d(np.arange(bags.bag_count), bags.holding(absent))
    positions, left = bags.only(whole)
    each = np.zeros((len(positions), 5), np.float32)
    assert len(table.lookup(wanted[positions], each, None, 0.0)) == 0
    assert out[whole].tobytes() == pooled(each, left).tobytes()
    counts = np.array([np.sum(wanted == key) for key in keys[:50]])
    assert table.scores(table.find(keys[:50])).tolist() == (0.5 + counts).tolist()


# Large batches, which an implementation may split over threads.


@pytest.mark.slow
def test_a_large_lookup_equals_many_small_ones(kind):
    schema, count = schema_of("float32", 5), many(kind)
    keys = random_keys(5000)
    wanted = np.random.default_rng(3).choice(np.concatenate([keys, random_keys(1000, 9)]), count)
    whole, parts = kind(schema, 8192, 8192), kind(schema, 8192, 8192)
    for table in (whole, parts):
        table.insert(rows_of(schema, keys, 0.5))
    out, expected = np.zeros((2, count, 5), np.float32)
    missing = whole.lookup(wanted, out, ScoreRule.COUNT, 0.0)
    assert missing.tolist() == np.flatnonzero(~np.isin(wanted, keys)).tolist()
    for at in range(0, count, 1000):
        part = slice(at, at + 1000)
        found = parts.lookup(wanted[part], expected[part], ScoreRule.COUNT, 0.0)
        np.testing.assert_array_equal(at + found, missing[(missing >= at) & (missing < at + 1000)])
    assert out.tobytes() == expected.tobytes()
    assert_same(whole.read(whole.occupied()), parts.read(parts.occupied()))
    counts = np.array([np.sum(wanted == key) for key in keys[:50]])
    assert whole.scores(whole.find(keys[:50])).tolist() == (0.5 + counts).tolist()


def test_a_large_upsert_takes_duplicates_in_order(kind):
    schema, count = schema_of("float32", 2, ()), many(kind)
    keys = random_keys(300)
    wanted = np.random.default_rng(4).choice(np.concatenate([keys, [LEAST, MOST]]), count)
    values = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    table = kind(schema, 512, 512)
    table.insert(rows_of(schema, keys))
    missing = table.upsert(wanted, values, 1)
    np.testing.assert_array_equal(missing, np.flatnonzero(table.find(wanted) < 0))
    last = {int(key): at for at, key in enumerate(wanted)}
    expected = values[[last[int(key)] for key in keys]]
    np.testing.assert_array_equal(table.read(table.find(keys)).embeddings(), expected)


@pytest.mark.parametrize("dim", quick([5, 1, 64]))
def test_a_large_step_sums_the_gradients_of_a_key_in_order(kind, dim):
    schema, count = schema_of("float32", dim, (dim,)), many(kind)
    chance = np.random.default_rng(dim)
    keys = random_keys(count * 3 // 4)
    batch = chance.choice(keys, count)
    batch[::7] = keys[3]
    grads = chance.normal(size=(count, dim)).astype(np.float32)
    grads[:, 0] = -0.0
    grads.flags.writeable = False  # as an array that a caller maps from a file
    distinct = Unique(batch)
    firsts = set(distinct.sums.first.tolist())
    totals = grads[distinct.sums.first]
    for at in range(count):
        if at not in firsts:
            totals[distinct.inverse[at]] += grads[at]
    together, alone = (kind(schema, 2 * count, 2 * count) for _ in range(2))
    for table in (together, alone):
        table.insert(rows_of(schema, keys))
        rows = table.read(table.occupied())
        rows.values[:] = 1.0
        table.put(table.occupied(), rows)
    cells = together.find(distinct.keys)
    cells[5:9] = -1
    together.apply(cells, Adagrad(0.5), grads, 9, distinct.sums, 0)
    for at in range(0, len(cells), count // 5):
        few = slice(at, at + count // 5)
        alone.apply(cells[few], Adagrad(0.5), totals[few], 9, single(len(cells[few])), 0)
    assert_same(together.read(together.occupied()), alone.read(alone.occupied()))
    assert (together.read(together.find(distinct.keys[5:9])).values == 1.0).all()
    assert (together.read(cells[9:]).steps == 9).all()
