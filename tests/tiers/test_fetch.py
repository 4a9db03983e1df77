"""A cold read beside other calls: what it covers, and what it no longer may be used for."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of

from kvemb.backends.memory_store import MemoryStore
from kvemb.errors import Corruption
from kvemb.rows.block import RowBlock
from kvemb.tiers.fetch import Fetch


@pytest.fixture
def cold() -> MemoryStore:
    store = MemoryStore(SCHEMA)
    store.write(rows_of([1, 3], 7.0))
    return store


def fetch_of(*keys: int) -> Fetch:
    return Fetch(RowBlock.with_keys(SCHEMA, np.array(keys)))


def test_rows_are_copied_to_their_places_and_missing_keys_are_told(cold):
    fetch = fetch_of(1, 2, 3)
    assert fetch.reading
    fetch.read(cold)
    fetch.wait()
    assert not fetch.reading
    assert fetch.covers(np.array([3, 9, 1, 2])).tolist() == [2, -1, 0, 1]
    into = RowBlock(SCHEMA, 3)
    assert fetch.copy(np.array([2, 1, 0]), into, np.array([0, 1, 2])).tolist() == [True, False, True]
    assert values_of(into.select([0, 2])) == {3: 7.0, 1: 7.0}
    assert not into.values[1].any()


def test_it_covers_its_keys_while_it_reads(cold):
    assert fetch_of(1, 2).covers(np.array([2, 3])).tolist() == [1, -1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_that_changed_meanwhile_are_not_covered(cold, when):
    fetch = fetch_of(1, 2, 3)
    if when == "after":
        fetch.read(cold)
    fetch.invalidate(np.array([2, 77]))
    if when == "before":
        fetch.read(cold)
    assert fetch.covers(np.array([1, 2, 3])).tolist() == [0, -1, 2]
    fetch.invalidate()
    assert fetch.covers(np.array([1, 2, 3])).tolist() == [-1, -1, -1]


def test_a_read_that_failed_has_ended_and_covers_nothing():
    class Broken:
        def fill(self, rows):
            raise OSError("gone")

    fetch = fetch_of(1)
    with pytest.raises(OSError, match="gone"):
        fetch.read(Broken())
    fetch.wait()
    assert fetch.covers(np.array([1])).tolist() == [-1]


@pytest.mark.parametrize("keys", [[1, 3], [3, 1], [1, 2, 3], [9, 1, 3]])
def test_rows_are_read_to_their_block_and_sound_as_long_as_none_has_changed(cold, keys):
    fetch = fetch_of(*keys)
    assert fetch.sound is None, "it has not read them"
    fetch.read(cold)
    assert fetch.sound.tolist() == [key in (1, 3) for key in keys]
    assert fetch.rows.keys.tolist() == keys
    assert fetch.rows.values[:, 0].tolist() == [7.0 if key in (1, 3) else 0.0 for key in keys]
    assert fetch.count == 2
    fetch.invalidate(np.array([77]))
    assert fetch.sound is not None
    fetch.invalidate(np.array([1]))
    assert fetch.sound is None


def test_a_read_that_was_cancelled_never_begins_and_one_that_has_begun_goes_on(cold):
    cancelled, begun = fetch_of(1), fetch_of(1)
    cancelled.cancel()
    cancelled.wait()
    assert not cancelled.begin()
    assert cancelled.covers(np.array([1])).tolist() == [-1]
    assert begun.begin()
    begun.cancel()
    assert begun.reading
    begun.read(cold)
    assert begun.covers(np.array([1])).tolist() == [0]


def test_it_is_spent_once_every_row_was_taken_or_has_changed(cold):
    fetch = fetch_of(1, 2, 3)
    assert not fetch.spent
    fetch.read(cold)
    assert not fetch.spent
    fetch.copy(np.array([0, 1]), RowBlock(SCHEMA, 2), np.array([0, 1]))
    assert not fetch.spent
    fetch.invalidate(np.array([3]))
    assert fetch.spent


def test_a_row_whose_score_is_not_a_number_is_not_read(cold):
    """A full bucket of them has no lowest score: the GPU's table wrote before the bucket's first cell."""
    cold.write(rows_of([5], 7.0, score=np.nan))
    fetch = fetch_of(1, 5)
    with pytest.raises(Corruption, match="the score of key 5 is not a number"):
        fetch.read(cold)
    assert fetch.covers(np.array([1, 5])).tolist() == [-1, -1]
