"""Hashing: a bijection of 64 bits, distinct keys of a batch, and the index from key to position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvemb.kernels.compiling import kernel
from kvemb.rows.hash_kernels import mix
from kvemb.rows.hashing import KeyIndex, Unique, table_size

LEAST, MOST = -(2**63), 2**63 - 1
KEYS = st.lists(st.one_of(st.integers(LEAST, MOST), st.integers(-3, 3)), max_size=60)


@kernel
def hashes(keys, out):
    for i in range(len(keys)):
        out[i] = mix(keys[i])


def mixed(key):
    """MurmurHash3's finaliser in Python's integers."""
    h = key % 2**64
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD % 2**64
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53 % 2**64
    return h ^ (h >> 33)


@given(st.lists(st.integers(LEAST, MOST), min_size=1, max_size=50))
@settings(deadline=None)
def test_the_hash_is_murmurs(keys):
    out = np.empty(len(keys), np.uint64)
    hashes(np.array(keys, np.int64), out)
    assert out.tolist() == [mixed(key) for key in keys]


def chain_of(sums, number):
    """The rows that are summed for a key, in order."""
    chain = [int(sums.first[number])]
    while (following := int(sums.following[chain[-1]])) >= 0:
        chain.append(following)
    return chain


@given(KEYS)
@settings(deadline=None)
def test_distinct_keys_are_in_order_of_first_occurrence(keys):
    batch = np.array(keys, np.int64)
    unique = Unique(batch)
    expected = list(dict.fromkeys(keys))
    assert unique.keys.tolist() == expected
    assert unique.repeated == (len(expected) < len(keys))
    assert unique.keys[unique.inverse].tolist() == keys
    assert unique.counts.tolist() == [keys.count(key) for key in expected]
    for number, key in enumerate(expected):
        assert chain_of(unique.sums, number) == [at for at, other in enumerate(keys) if other == key]
        assert chain_of(unique.sums.of(slice(number, None)), 0) == chain_of(unique.sums, number)
    for chosen in (slice(None), slice(1, None, 2), slice(0, 0)):
        sums = unique.sums.of(chosen)
        rows, bounds = sums.grouped()
        parts = [part.tolist() for part in np.split(rows, bounds[1:-1])][: len(sums.first)]
        assert parts == [chain_of(sums, number) for number in range(len(sums.first))]
        assert bounds[-1] == len(rows)
    assert unique.sums.of(slice(0, len(expected))) is unique.sums
    assert unique.last.tolist() == [len(keys) - 1 - keys[::-1].index(key) for key in expected]


def test_a_large_batch_of_few_keys_is_counted():
    batch = np.random.default_rng(0).integers(-500, 500, 100_000)
    unique = Unique(batch)
    expected, counts = np.unique(batch, return_counts=True)
    order = np.argsort(unique.keys)
    np.testing.assert_array_equal(unique.keys[order], expected)
    np.testing.assert_array_equal(unique.counts[order], counts)


@pytest.mark.parametrize("entries", [0, 1, 7, 8, 9, 1000, 2**20])
def test_an_index_is_at_max_half_full(entries):
    size = table_size(entries)
    assert size & (size - 1) == 0
    assert size >= 2 * entries


@given(st.lists(st.lists(st.integers(-20, 20), max_size=10), max_size=8))
@settings(deadline=None)
def test_an_index_keeps_the_latest_position(batches):
    flat = np.array([key for batch in batches for key in batch], np.int64)
    index, latest, at = KeyIndex(len(flat)), {}, 0
    for batch in batches:
        index.put(flat, at, at + len(batch))
        latest.update({key: at + i for i, key in enumerate(batch)})
        at += len(batch)
        wanted = np.arange(-25, 25)
        assert index.find(flat, wanted).tolist() == [latest.get(int(key), -1) for key in wanted]


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 9)), max_size=60))
@settings(deadline=None)
def test_a_position_that_is_put_again_for_another_key_is_no_longer_found_for_the_first(puts):
    keys, latest = np.full(16, 99), {}
    index = KeyIndex(60)
    for position, key in puts:
        keys[position] = key
        index.put_at(keys, np.array([position]))
        latest[key] = position
        for wanted in range(10):
            at = latest.get(wanted, -1)
            expected = at if at >= 0 and keys[at] == wanted else -1
            found = int(index.find(keys, np.array([wanted]))[0])
            # The last position of a key counts as long as it is its own; an older one may be found after that.
            assert found == expected or (expected == -1 and keys[found] == wanted)
    assert not index.has_room(61 - len(puts))


def test_an_index_holds_the_keys_it_was_made_for():
    keys = np.random.default_rng(1).integers(LEAST, MOST, 5000)
    index = KeyIndex(len(keys))
    index.put(keys, 0, len(keys))
    np.testing.assert_array_equal(index.find(keys, keys), np.arange(5000))
    assert len(index.find(keys, np.empty(0, np.int64))) == 0


def test_one_key_is_told_as_many_are():
    one, many = Unique(np.array([7])), Unique(np.array([7, 9]))
    assert not one.repeated
    for told in ("keys", "inverse", "counts", "last"):
        assert getattr(one, told).tolist() == getattr(many, told).tolist()[:1]
        assert getattr(one, told).dtype == getattr(many, told).dtype
    assert [part.tolist() for part in one.sums] == [part.tolist()[:1] for part in many.sums]
