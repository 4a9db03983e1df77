"""Popular keys and long bags on a GPU: many warps load what is added, and it is added in the order of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays_on_device import ArrayOnDevice
from cuda_devices import device_of, table_on
from cuda_on_cpu import CpuDevice
from every_optimizer import assert_same

from kvemb.backends.cuda.steps import MANY
from kvemb.backends.cuda.table import CudaTable
from kvemb.contracts import PlannedChange
from kvemb.optimizers import SGD, Optimizer
from kvemb.rows.bags import Bags
from kvemb.rows.block import RowBlock
from kvemb.rows.hashing import Unique
from kvemb.rows.schema import Schema, dtype_of

# How often each of the keys 0, 1, 2 ... is in the batch.
TIMES = (1, 2, 8, 9, 33, MANY, MANY + 1, 2 * MANY + 65, 0, 3)


@pytest.fixture
def device() -> CpuDevice:
    return device_of("cpu")  # type: ignore[return-value]


def batch() -> Any:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(TIMES)), TIMES))


def table_of(device: CpuDevice, dtype: str, dim: int, optimizer: Optimizer) -> CudaTable:
    """With the rows of all keys."""
    schema = Schema(dtype_of("int64"), dtype_of(dtype), dim, optimizer.shapes(dim))
    rows = RowBlock(schema, len(TIMES))
    rows.keys[:] = np.arange(len(TIMES))
    rows.values[:, :dim] = values_of(schema, len(TIMES)).view(schema.kernel_dtype)
    table = table_on(device, schema, 128, 128)
    table.insert(rows)
    return table


def values_of(schema: Schema, count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, schema.dim)).astype(schema.value_dtype)


def embeddings(table: CudaTable) -> Any:
    return table.read(table.find(np.arange(len(TIMES)))).embeddings()


def in_order(parts: Any, keys: Any, key: int) -> Any:
    """The sum of the parts of one key, one after the other."""
    total, *others = parts[keys == key]
    for part in others:
        total = total + part
    return total


@pytest.mark.independent
@pytest.mark.parametrize("where", ["device", "host", "host, some of the keys"])
@pytest.mark.parametrize(("dtype", "dim"), [("float32", 3), ("float64", 39)])
@pytest.mark.parametrize("optimizer", [SGD(1.0), SGD(1.0, clip_value=0.5)], ids=["one in place", "a copy of each"])
def test_gradients_of_popular_keys_are_added_in_order(device, where, dtype, dim, optimizer):
    table, keys = table_of(device, dtype, dim, optimizer), batch()
    grads, before = values_of(table.schema, len(keys)), embeddings(table)
    if where == "device":
        rows, given = table.device_rows, [table.device_rows.given(ArrayOnDevice(each)) for each in (keys, grads)]
        with rows.on(*given):
            assert not len(rows.find(given[0]).keys)
            rows.prepare(optimizer)
            rows.apply(optimizer, given[1], 1, 1)
    else:
        distinct = Unique(keys)
        chosen = slice(None) if where == "host" else slice(1, None)
        keys_of, sums = distinct.keys[chosen], distinct.sums if where == "host" else distinct.sums.of(chosen)
        table.prepare(len(keys_of), PlannedChange(optimizer=optimizer, grads=grads, sums=sums))
        table.apply(table.find(keys_of), optimizer, grads, 1, sums, 1)
        keys = np.where(np.isin(keys, keys_of), keys, -1)
    expected = before.copy()
    there = np.unique(keys[keys >= 0])
    sums = np.array([in_order(grads, keys, key) for key in there])
    expected[there] = optimizer.step(before[there], {}, sums, 1)
    assert_same(embeddings(table), expected)
    assert device.launches["sum_many_gradients"] == 1


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_changes_of_popular_keys_are_added_in_order_and_rounded_each_time(device, dtype):
    table, keys = table_of(device, dtype, 35, SGD(1.0)), batch()
    kind, schema = np.float32 if dtype == "float16" else np.int64, table.schema
    old, new = values_of(schema, len(keys)) * 3, values_of(schema, len(keys) + 1)[1:] * 5
    expected = embeddings(table)
    for key, before, after in zip(keys, old, new, strict=True):
        total = expected[key].astype(kind) + (after.astype(kind) - before.astype(kind))
        expected[key] = total.astype(schema.value_dtype)
    table.add(table.find(keys), old, new, 1)
    assert_same(embeddings(table), expected)


@pytest.mark.parametrize("dim", [5, 32, 39, 70])
def test_shares_of_popular_keys_are_added_in_order(device, dim):
    table, keys, chance = table_of(device, "float32", dim, SGD(1.0)), batch(), np.random.default_rng(dim)
    offsets = np.sort([0, *chance.integers(0, len(keys), 39), len(keys)])
    weights, divisors = chance.normal(size=len(keys)).astype(np.float32), chance.integers(0, 3, 40).astype(np.float32)
    bags, grads = Bags(offsets, weights, divisors, np.inf), chance.normal(size=(40, dim)).astype(np.float32)
    distinct = Unique(keys)
    rows, out = table.device_rows, np.full((len(distinct.keys), dim), 7, np.float32)
    given, filled = rows.given(ArrayOnDevice(grads)), rows.given(ArrayOnDevice(out))
    with rows.on(filled, given):
        rows.row_gradients(distinct.sums, bags.of_keys(), bags, given, filled)
        found = rows.to_host(filled)
    shares = np.where(divisors, 1, 0)[:, None] * grads / np.where(divisors, divisors, 1)[:, None]
    parts = weights[:, None] * shares.astype(np.float32)[bags.of_keys()]
    for row, key in zip(found, distinct.keys, strict=True):
        assert_same(row, in_order(parts, keys, key))
    assert device.launches["many_row_gradients"] == 1


@pytest.mark.parametrize("weighted", [False, True])
def test_long_bags_are_pooled_in_order_without_rows_that_are_missing(device, weighted):
    table, chance = table_of(device, "float32", 35, SGD(1.0)), np.random.default_rng(3)
    keys = chance.integers(-2, len(TIMES), 300)
    offsets = np.array([0, 0, 7, 15, 24, 300])
    weights = chance.normal(size=300).astype(np.float32) if weighted else np.empty(0, np.float32)
    bags, out = Bags(offsets, weights, np.empty(0, np.float32), np.inf), np.full((5, 35), 7, np.float32)
    missing = table.pool(keys, bags, None, out, None, 0.0)
    assert missing.tolist() == np.flatnonzero(keys < 0).tolist()
    rows = embeddings(table)
    for bag in range(5):
        total = np.zeros(35, np.float32)
        for i in range(offsets[bag], offsets[bag + 1]):
            if keys[i] >= 0:
                total = total + (weights[i] * rows[keys[i]] if weighted else rows[keys[i]])
        assert_same(out[bag], total)


def test_few_gradients_need_one_kernel(device):
    table, optimizer = table_of(device, "float32", 4, SGD(1.0)), SGD(1.0)
    distinct = Unique(np.zeros(MANY, np.int64))
    table.apply(table.find(distinct.keys), optimizer, values_of(table.schema, MANY), 1, distinct.sums, 1)
    assert (device.launches["sum_gradients"], device.launches.get("sum_many_gradients")) == (1, None)
