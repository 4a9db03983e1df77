"""How a row begins."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA

import kvemb
from kvemb import registry
from kvemb.operations.row_factory import RowFactory
from kvemb.rows.block import DIRTY


def factory(initializer=None, optimizer=None):
    return RowFactory(SCHEMA, initializer or kvemb.Constant(2.5), optimizer, registry.row_kernels())


def test_missing_keys_read_as_the_initializer_says():
    initializer = kvemb.RandomUniform(seed=4)
    keys = np.array([7, -1, 7])
    got = factory(initializer).embeddings(keys)
    assert got.tobytes() == initializer.rows(keys, SCHEMA.dim, SCHEMA.value_dtype).tobytes()


@pytest.mark.parametrize("initializer", [kvemb.Constant(2.5), kvemb.RandomUniform(seed=4)])
def test_what_is_given_is_the_callers_own(initializer):
    made, keys = factory(initializer), np.array([7, -1])
    first = made.embeddings(keys)
    expected = first.copy()
    first[:] = 9.0
    assert made.embeddings(keys).tobytes() == expected.tobytes()


def test_a_new_row_is_dirty_and_has_its_values_score_and_step():
    values = np.array([[1, 2], [3, 4]], np.float32)
    rows = factory().rows(np.array([5, 6]), values, 0.5, 9)
    assert rows.keys.tolist() == [5, 6]
    assert rows.embeddings().tolist() == values.tolist()
    assert rows.scores.tolist() == [0.5, 0.5]
    assert rows.steps.tolist() == [9, 9]
    assert (rows.flags == DIRTY).all()


def test_no_keys_give_no_rows():
    none = np.empty(0, np.int64)
    assert len(factory().rows(none, np.empty((0, 2), np.float32), 0.0, 1)) == 0
    assert factory().embeddings(none).shape == (0, 2)
