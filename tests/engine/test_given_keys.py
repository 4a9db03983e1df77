"""The keys of a call, where they are in the host's memory: what they are made, and what belongs to them."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from kvemb.engine.given_keys import given_keys, gradients, owned_keys
from kvemb.handle import inside
from kvemb.optimizers import SGD


def test_keys_and_what_belongs_to_them_are_flat_and_results_have_their_shape(make):
    for keys, shape in (([[1, 2], [3, 4]], (2, 2)), (5, ()), ([7], (1,)), (np.empty((0, 3), np.int64), (0, 3))):
        given = given_keys(inside(make()), keys)
        assert not given.on_device
        assert (given.shape, given.flat.tolist()) == (shape, np.ravel(keys).tolist())
        assert given.in_host() is given.flat
        rows, flags = given.rows(None), given.flags()
        assert (rows.shape, flags.shape) == ((given.flat.size, 3), (given.flat.size,))
        assert (given.result(rows).shape, given.result(flags).shape) == ((*shape, 3), shape)
        assert np.shares_memory(given.result(rows), rows) or not rows.size
        assert given.per_key(np.zeros((*shape, 3)), np.dtype(np.float64), "x", 3).shape == rows.shape
        assert given.flags_per_key(np.ones(shape, bool), "x").shape == flags.shape


def test_the_partitioner_is_asked_before_anything_changes(make):
    later = [np.zeros(2, int), *[ZeroDivisionError] * 99]  # it is tried when the variable is made
    table = inside(make(devices=["cpu"] * 2, partitioner=Mock(side_effect=later), optimizer=SGD()))
    assert given_keys(table, [1]).flat.tolist() == [1]
    for call in (lambda: owned_keys(table, [1]), lambda: gradients(table, [1], np.ones((1, 3), np.float32))):
        with pytest.raises(ZeroDivisionError):
            call()
