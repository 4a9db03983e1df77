"""Buckets are part of the format; shards get equal shares; divided batches are joined in order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kvemb.cluster.router import BUCKETS, MAX_KEPT_KEYS, MIN_KEPT_KEYS, Router, buckets_of, first_buckets


def test_the_bucket_of_a_key_never_changes():
    """FORMAT.md has these, by SplitMix64 as its authors published it, in Python's integers."""

    def bucket(key):
        mask = 2**64 - 1
        z = (key + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return (z ^ (z >> 31)) >> 52

    keys = [0, 1, 2, 42, -1, 2**63 - 1, -(2**63)]
    assert buckets_of(np.array(keys, np.int64)).tolist() == [bucket(key % 2**64) for key in keys]
    assert buckets_of(np.array(keys, np.int64)).tolist() == [3618, 2320, 2421, 3037, 3661, 678, 1153]


@given(arrays.arrays(np.int64, st.integers(0, 300)), st.integers(1, 12))
def test_a_split_has_each_position_once_in_the_batches_order(keys, shards):
    router = Router(shards)
    split = router.split(keys)
    assert sorted(split.order.tolist()) == list(range(len(keys)))
    for shard, positions in split.positions():
        assert (router.shards_of(keys[positions]) == shard).all()
        assert (np.diff(positions) > 0).all()
    assert sum(part.stop - part.start for _, part in split.parts) == len(keys)


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 1000, BUCKETS])
def test_buckets_are_divided_into_ranges_of_nearly_one_length(shards):
    firsts = first_buckets(shards)
    assert (firsts[0], firsts[-1], len(firsts)) == (0, BUCKETS, shards + 1)
    assert set(np.diff(firsts)) <= {BUCKETS // shards, BUCKETS // shards + 1}
    every = Router(shards).shards_of(np.arange(200_000))
    assert len(np.unique(every)) == shards


@pytest.mark.parametrize("keys", [np.arange(10**6), np.arange(10**6) << 32, np.arange(10**6) * 4096])
def test_the_heaviest_of_eight_shards_has_at_max_a_tenth_more_than_its_share(keys):
    counts = np.bincount(Router(8).shards_of(keys.astype(np.int64)), minlength=8)
    assert counts.max() <= 1.02 * counts.mean()


def test_the_keys_of_a_shard_are_spread_over_its_hot_tables_buckets():
    """A hot table's buckets are low bits of the halves of another hash."""
    keys = np.arange(10**6)
    mine = keys[Router(64).shards_of(keys) == 5].astype(np.uint64)
    h = mine.copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
    h ^= h >> np.uint64(33)
    for half in (h & np.uint64(63), h >> np.uint64(32) & np.uint64(63)):
        counts = np.bincount(half.astype(np.int64), minlength=64)
        assert counts.min() > 0.7 * counts.mean()


@given(arrays.arrays(np.int64, st.integers(0, 300), elements=st.integers(-40, 40)), st.integers(1, 12))
@settings(deadline=None)
def test_a_group_has_each_distinct_key_once_with_those_of_its_shard(keys, shards):
    router = Router(shards)
    grouped = router.group(keys)
    assert sorted(grouped.keys.tolist()) == sorted(set(keys.tolist()))
    assert (grouped.keys[grouped.inverse] == keys).all()
    assert grouped.repeated == (len(grouped.keys) < len(keys))
    covered = []
    for shard, where in grouped.parts:
        assert (router.shards_of(grouped.keys[where]) == shard).all()
        covered += range(where.start, where.stop)
    assert covered == list(range(len(grouped.keys)))
    for number, key in enumerate(grouped.keys):
        at, occurrences = int(grouped.sums.first[number]), []
        while at >= 0:
            occurrences.append(at)
            at = int(grouped.sums.following[at])
        assert occurrences == np.flatnonzero(keys == key).tolist()
        assert grouped.counts[number] == len(occurrences)


@pytest.mark.parametrize("changed", [slice(None), 1], ids=["all", "one that is not compared first"])
@pytest.mark.parametrize("shards", [1, 4])
def test_a_caller_who_changes_an_array_of_keys_changes_no_group_of_its_batch(shards, changed):
    router, keys = Router(shards), np.arange(MIN_KEPT_KEYS)
    router.group(keys)
    keys[changed] += 1000
    for batch in (keys, np.arange(MIN_KEPT_KEYS)):
        grouped = router.group(batch)
        assert (grouped.keys[grouped.inverse] == batch).all()


def test_the_groups_of_all_tables_of_a_step_are_kept_and_no_more_keys_than_stated():
    router = Router(2)
    batches = [np.arange(MIN_KEPT_KEYS) + table for table in range(30)]
    first = [router.group(batch) for batch in batches]
    assert all(router.group(batch.copy()) is group for batch, group in zip(batches, first, strict=True))
    size = MAX_KEPT_KEYS // 3
    large = [router.group(np.arange(size) + table) for table in range(4)]
    assert router.group(np.arange(size) + 3) is large[3]
    for batch, group in ((np.arange(size), large[0]), (batches[0], first[0])):
        assert router.group(batch) is not group, "the oldest were dropped"
