"""Gradients divided among shards: those of equal keys summed, unless each occurrence counts."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.cluster.batches import Packed, divided
from kvemb.cluster.router import Router
from kvemb.rows.schema import Schema


@pytest.mark.parametrize("shards", [1, 3])
def test_equal_keys_are_summed_unless_an_admission_counts_them(shards):
    chance = np.random.default_rng(0)
    keys, grads = chance.integers(0, 50, 200), chance.standard_normal((200, 2)).astype(np.float32)
    router = Router(shards)
    whole, sums = [], np.zeros((50, 2), np.float32)
    np.add.at(sums, keys, grads)
    for shard, (some, slopes) in divided(router, keys, grads, 2, admits=False):
        assert (router.shards_of(some) == shard).all()
        np.testing.assert_array_equal(slopes, sums[some])
        whole += some.tolist()
    assert sorted(whole) == np.unique(keys).tolist()
    counted = [(some, slopes) for _, (some, slopes) in divided(router, keys, grads, 2, admits=True)]
    order = np.argsort(router.shards_of(keys), kind="stable")
    np.testing.assert_array_equal(np.concatenate([some for some, _ in counted]), keys[order])
    np.testing.assert_array_equal(np.concatenate([slopes for _, slopes in counted]), grads[order])


def test_rows_of_several_variables_are_one_array_of_bytes_on_both_ends():
    schemas = [Schema(np.dtype(np.int64), np.dtype(dtype), dim) for dtype, dim in (("f2", 3), ("f8", 2), ("f4", 5))]
    mine = Packed(schemas, [3, 2, 1])
    for at, rows in enumerate(mine.rows):
        rows[:] = at + np.arange(rows.size).reshape(rows.shape)
    theirs = Packed(schemas, [3, 2, 1], mine.bytes.copy())
    for ours, rows in zip(mine.rows, theirs.rows, strict=True):
        assert rows.dtype == ours.dtype
        np.testing.assert_array_equal(rows, ours)
    assert Packed([], []).rows == []
