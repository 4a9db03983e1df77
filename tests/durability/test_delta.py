"""Deltas: exact, in key order, whatever was recorded too much, and through clears, drops and new variables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from blocks import SCHEMA, rows_of
from manifests import ID, entry_of, manifest_of

from kvemb.backends.memory_store import MemoryStore
from kvemb.durability.delta import differences, epochs_since
from kvemb.durability.manifest import Epoch
from kvemb.errors import CheckpointNotFound
from kvemb.rows.block import RowBlock
from kvemb.rows.codec import order_keys
from kvemb.rows.schema import Schema

BEFORE = "beef" + 28 * "0"
# Its rows have as many bytes as those of SCHEMA.
NARROW = Schema(np.dtype(np.int64), np.dtype(np.float32), 1)
SMALL = Schema(np.dtype(np.int32), np.dtype(np.float32), 2)


class Side:
    """A checkpoint with a table in memory, or without one: what of readable.ReadableCheckpoint a delta asks.

    recorded: the keys recorded since the checkpoint BEFORE.
    """

    def __init__(self, rows=None, recorded=(), *, schema=SCHEMA, cleared=False, identity=ID):
        self.path = "after"
        self.store = None if rows is None else MemoryStore(schema)
        variables = {}
        if rows is not None:
            variables = {"table": entry_of(str(schema.key_dtype), schema.dim)}
            block = RowBlock(schema, len(rows))
            block.keys[:], block.values[:, 0] = list(rows), list(rows.values())
            self.store.write(block)
        self.described = manifest_of(id=identity, variables=variables, changes=[Epoch(ID), Epoch(BEFORE)])
        self.cleared, self.keys, self.schema = cleared, sorted(recorded), schema

    def rows(self, variable):
        return self.store

    def recorded(self, epochs, variable, most):
        assert [epoch.since for epoch in epochs] == [BEFORE]
        keys = order_keys(np.array(self.keys, np.int64), self.schema)
        return self.cleared, (keys[at : at + most] for at in range(0, len(keys), most))


def before(rows=None, **arguments):
    return Side(rows, identity=BEFORE, **arguments)


def changes(old, new, batch_rows=100):
    """The changed rows and the removed keys, of batches none of which is empty or too long."""
    rows, removed = {}, []
    for change in differences(old, new, ["table"], batch_rows):
        assert 0 < len(change.keys) + len(change.removed) <= 2 * batch_rows
        assert (np.diff(change.keys) > 0).all()
        rows |= dict(zip(change.keys.tolist(), change.values[:, 0].tolist(), strict=True))
        removed += change.removed.tolist()
    return rows, removed


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_of_recorded_keys_those_that_differ_are_told(batch_rows):
    old, new = before({-2: 1.0, 1: 1.0, 2: 2.0, 3: 3.0}), Side({1: 1.0, 2: 5.0, 4: 4.0, 3: 3.0}, [-2, 1, 2, 4, 9])
    assert changes(old, new, batch_rows) == ({2: 5.0, 4: 4.0}, [-2])


@pytest.mark.parametrize(("column", "value"), [("values", -0.0), ("scores", 1.0), ("scores", -0.0), ("steps", 1)])
def test_every_part_of_a_row_counts_bit_by_bit(column, value):
    old, new = before({1: 0.0, 2: 0.0}), Side({1: 0.0, 2: 0.0}, [1, 2])
    other = rows_of([2], 0.0)
    getattr(other, column)[:] = value
    new.store.write(other)
    assert list(changes(old, new)[0]) == [2]


def test_after_a_clear_every_old_row_is_looked_at():
    old, new = before({1: 1.0, 2: 2.0, 3: 3.0}), Side({2: 2.0, 3: 9.0, 4: 4.0}, [2, 3, 4], cleared=True)
    for batch_rows in (1, 100):
        assert changes(old, new, batch_rows) == ({3: 9.0, 4: 4.0}, [1])


def test_of_a_dropped_variable_every_key_is_removed():
    assert changes(before({1: 1.0, 2: 2.0}), Side(), 1) == ({}, [1, 2])


def test_of_a_new_variable_every_row_is_told():
    assert changes(before(), Side({1: 1.0}, [1, 2], cleared=True)) == ({1: 1.0}, [])


def test_rows_of_another_schema_differ_even_where_their_values_do_not():
    old, new = before({1: 1.0, 2: 2.0}), Side({2: 2.0}, [2], schema=NARROW, cleared=True)
    assert changes(old, new) == ({2: 2.0}, [1])
    (change,) = differences(old, new, ["table"])
    assert change.values.shape == (1, 1)


def test_keys_of_another_dtype_are_removed_before_the_new_ones_come():
    old, new = before({1: 1.0, 2**40: 2.0}), Side({1: 1.0}, [1], schema=SMALL, cleared=True)
    told = list(differences(old, new, ["table"]))
    assert [(change.keys.tolist(), change.removed.tolist()) for change in told] == [([], [1, 2**40]), ([1], [])]
    assert [change.removed.dtype for change in told] == [np.int64, np.int32]


def test_epochs_are_those_from_the_earlier_checkpoint_on(tmp_path):
    described = manifest_of(changes=[Epoch("a"), Epoch("b"), Epoch("c")])
    assert [epoch.since for epoch in epochs_since(tmp_path, described, "b")] == ["b", "c"]
    assert epochs_since(tmp_path, replace(described, id="d"), "d") == [], "of itself"
    with pytest.raises(CheckpointNotFound, match=rf"{tmp_path} does not record .* checkpoint x, only since a: "):
        epochs_since(tmp_path, described, "x")
