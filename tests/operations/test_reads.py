"""Reads of several steps: one that a refresh interrupts is repeated until it has seen one point throughout."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import kvemb
from kvemb.handle import inside
from kvemb.operations import reads
from kvemb.operations.reads import repeat_if_refreshed


class Reader:
    def __init__(self, moves: int) -> None:
        self._storage, self.moves = SimpleNamespace(refreshes=0), moves

    @repeat_if_refreshed
    def read(self, *given: int, named: int) -> tuple[int, int, tuple[int, ...], int]:
        before = self._storage.refreshes
        if self.moves:
            self.moves -= 1
            self._storage.refreshes += 1
        return before, self._storage.refreshes, given, named


def test_it_is_repeated_as_often_as_the_point_moved():
    for moves in range(4):
        reader = Reader(moves)
        assert reader.read(1, 2, named=3) == (moves, moves, (1, 2), 3)
        assert reader.moves == 0


class Damped(kvemb.RestrictPolicy):
    """A user's own policy: it matters how many uses a call has."""

    def score(self, old_score, count, now):
        return old_score * 0.75 + np.sqrt(count)


POLICIES = [None, kvemb.FrequencyRestrictPolicy(), kvemb.TimestampRestrictPolicy("steps"), Damped()]


# No row is written: an unused one that waits for it becomes hot again, one that was written only by its score.
@pytest.mark.independent
@pytest.mark.limits(min_own_copies=1000)
@pytest.mark.parametrize("policy", POLICIES, ids=["none", "frequency", "last use", "custom"])
def test_uses_that_are_told_are_those_of_repeated_keys(make, policy):
    """Of keys that are hot, cold and missing."""
    tables = [make(restrict_policy=policy) for _ in range(2)]
    for table in tables:
        table.upsert(np.arange(60), np.arange(60, dtype=np.float32)[:, None].repeat(table.dim, axis=1))
    chance = np.random.default_rng(5)
    for _ in range(4):
        keys = chance.permutation(80)[:50]
        counts = chance.integers(1, 4, 50)
        tables[0].lookup(keys.repeat(counts))
        operations, out = inside(tables[1]).operations, np.empty((50, tables[1].dim), np.float32)
        operations.lookup(keys, out, None, touch=True, counts=counts)
        for table in tables:
            assert (out == table.lookup(keys, touch=False)).all()
        everything = np.arange(80)
        scores = [inside(table).operations.scores(everything) for table in tables]
        assert np.array_equal(*scores, equal_nan=True)
    seen = [(table.stats.hits, table.stats.misses, table.stats.absent) for table in tables]
    assert seen[0] == seen[1]


def test_pooling_missing_string_keys_compiles_no_other_kernel(store, monkeypatch):
    """Their rows are without their names, which must not leave gaps: kernels are compiled anew for such arrays."""
    contiguous = []

    def spread(rows, at, out, to):
        contiguous.append(rows.flags.c_contiguous)
        out[to] = rows[at]

    monkeypatch.setattr(reads, "spread", spread)
    words = store.get_variable("words", key_dtype="string", dim=2, initializer=0.5)
    assert kvemb.embedding_lookup_sparse(words, ["a", "b", "c"], [0, 1], combiner="sum").values.tolist() == [
        [0.5, 0.5],
        [1, 1],
    ]
    assert contiguous
    assert all(contiguous)
