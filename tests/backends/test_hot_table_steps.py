"""What contracts.HotTable promises of optimizer steps: the bits of the formulas in NumPy, for every implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_optimizer import EVERY, QUICK, SHAPES, assert_same, block_of

from kvemb.optimizers import LAMB, Optimizer, RowWiseAdagrad
from kvemb.rows.block import DIRTY
from kvemb.rows.hashing import Sums

ROWS = 20


def check_bits(kind: Any, optimizer: Optimizer, dtype: str, dim: int) -> None:
    """Take steps on some of the rows, a few with sums of gradients; compare rows and slots, flags and steps."""
    rows, every, chance = block_of(optimizer, dtype, dim, ROWS), np.arange(ROWS), np.random.default_rng(dim)
    rows.keys[:], rows.flags[:] = every, 0
    schema, values, slots, touched = rows.schema, rows.embeddings(), rows.slots_by_name(), np.zeros(ROWS, bool)
    table = kind(schema, 128, 128)
    table.insert(rows)
    for step in range(5):
        index = chance.permutation(ROWS)[:12]
        grads = chance.normal(size=(16, dim)).astype(schema.slot_dtype)
        grads[0] = [0.0, 1e-30, 1e-20, 1e18, np.inf][step]  # squares that are subnormal, one near the largest
        totals, following, given = grads[:12].copy(), np.full(16, -1), grads.copy()
        following[[3, 12, 5]] = [12, 13, 14]
        totals[3], totals[5] = grads[3] + grads[12] + grads[13], grads[5] + grads[14]
        of_rows = {name: slot[index] for name, slot in slots.items()}
        values[index] = optimizer.step(values[index], of_rows, totals, step + 1)
        for name, slot in of_rows.items():
            slots[name][index] = slot
        touched[index] = True
        table.apply(table.find(index), optimizer, grads, step, Sums(np.arange(12), following), step + 1)
        np.testing.assert_array_equal(grads, given)
        assert (table.read(table.find(index)).steps == step).all()
        assert_rows(table, values, slots)
    optimizer.match_slots(values, slots)
    table.match(table.find(every), optimizer, 5)
    assert_rows(table, values, slots)
    touched |= optimizer.match is not None
    np.testing.assert_array_equal(table.read(table.find(every)).flags, touched * DIRTY)


def assert_rows(table: Any, values: Any, slots: Any) -> None:
    read = table.read(table.find(np.arange(ROWS)))
    assert_same(read.embeddings(), values)
    for name, slot in read.slots_by_name().items():
        assert_same(slot, slots[name])


@pytest.mark.parametrize("optimizer", QUICK, ids=repr)
def test_steps_have_the_bits_of_numpy(kind, optimizer):
    check_bits(kind, optimizer, "float32", 17)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EVERY)), ids=lambda number: repr(EVERY[number]))
def test_steps_of_every_optimizer_have_the_bits_of_numpy(kind, number):
    """In one dtype each, as a kernel takes a second to compile; rows are longer and shorter than a warp."""
    dtype, dim = [*SHAPES, ("float32", 45)][number % 5]
    check_bits(kind, EVERY[number], dtype, dim)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 5, 15, 16, 31, 33, 100])
@pytest.mark.parametrize("optimizer", [RowWiseAdagrad(0.1), LAMB(0.1)], ids=repr)
def test_sums_over_rows_of_any_length_are_in_one_order(kind, optimizer, dim):
    check_bits(kind, optimizer, "float32", dim)
