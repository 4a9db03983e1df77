"""Kernels of optimizers on a GPU: the C that comes of a formula, and the bits of every one of them."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_devices import DEVICES, device_of
from every_optimizer import EVERY, QUICK, SHAPES, assert_same

from kvemb.backends.cuda.formulas import source_of, uses_buffers
from kvemb.backends.cuda.table import CudaTable
from kvemb.optimizers import LAMB, SGD, Adagrad, Adam, NAdam, Optimizer, RowWiseAdagrad
from kvemb.optimizers.arithmetic import Elements
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import Sums
from kvemb.rows.schema import Schema, dtype_of

ROWS = 20


def of(optimizer: Optimizer) -> str:
    """The C of an optimizer's kernel."""
    return source_of(optimizer.formulas, tuple(slot.name for slot in optimizer.slots))


def test_a_loop_runs_over_a_lanes_elements_and_a_literal_has_the_slots_dtype():
    source = of(Adagrad())
    assert "for (i64 j_0 = lane_; j_0 < dim_; j_0 += 32) {" in source
    assert "const auto s_0 = (accumulator[j_0] + (g[j_0] * g[j_0]));" in source
    assert "narrow((wide(stored_[j_0]) - " in source
    assert "((Slot)1 - power(beta_1_0, count_of_row_))" in of(Adam())
    assert "power(beta_1_0, count_)" in of(Adam(bias_correction="global"))


def test_lanes_wait_for_each_other_around_an_element_that_all_use():
    lines = [line.strip() for line in of(RowWiseAdagrad()).splitlines()]
    at = lines.index("if (lane_ == 0) accumulator[0] = s_0;")
    assert lines[at - 1] == lines[at + 1] == "__syncwarp();"


def test_buffers_are_for_gradients_that_change_and_for_embeddings_that_are_rounded_once():
    assert uses_buffers(Adagrad().formulas) == (False, False)
    assert uses_buffers(SGD(clip_value=1).formulas) == (True, False)
    assert uses_buffers(SGD(weight_decay=0.1, decoupled=True).formulas) == (False, True)
    assert uses_buffers(LAMB().formulas) == (True, True)


def test_a_table_comes_with_its_length():
    assert "const double* products_1, i64 products_1_length" in of(NAdam())
    assert "entry(products_1, products_1_length, count_of_row_)" in of(NAdam())


def twice(dim: int, w: Elements, g: Elements) -> None:
    for j in range(dim):
        a = g[j] * 2
        a = a + w[j]
        w[j] = a


def test_a_name_is_assigned_once():
    with pytest.raises(TypeError, match="twice: a is assigned twice; use another name"):
        source_of((twice,), ())


def check_bits(optimizer: Optimizer, dtype: str, dim: int, device: str = "cpu") -> None:
    """Steps on rows, some by sums of gradients, have NumPy's bits."""
    where = device_of(device)
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    kind = type("Table", (CudaTable,), {"open_device": staticmethod(lambda name: where)})
    schema, chance = Schema(dtype_of("int64"), dtype_of(dtype), dim, optimizer.shapes(dim)), np.random.default_rng(dim)
    rows, every = RowBlock(schema, ROWS), np.arange(ROWS)
    rows.keys[:] = every
    values = chance.normal(size=(ROWS, dim)).astype(schema.value_dtype)
    rows.values[:, :dim] = values.view(schema.kernel_dtype)
    for at, slot in enumerate(optimizer.slots):
        rows.slot(at)[:] = slot.initial
    slots, touched = rows.slots_by_name(), np.zeros(ROWS, bool)
    table = kind(schema, 128, 128)
    table.insert(rows)
    for step in range(4):
        index = chance.permutation(ROWS)[:12]
        grads = chance.normal(size=(16, dim)).astype(schema.slot_dtype)
        grads[0] = [0.0, 1e-20, 1e18, np.inf][step]  # a square that is subnormal, one near the largest
        totals, following = grads[:12].copy(), np.full(16, -1)
        following[[3, 12, 5]] = [12, 13, 14]
        totals[3], totals[5] = grads[3] + grads[12] + grads[13], grads[5] + grads[14]
        of_rows = {name: slot[index] for name, slot in slots.items()}
        values[index] = optimizer.step(values[index], of_rows, totals, step + 1)
        for name, slot in of_rows.items():
            slots[name][index] = slot
        touched[index] = True
        table.apply(table.find(index), optimizer, grads, step, Sums(np.arange(12), following), step + 1)
        assert_rows(table, values, slots)
    optimizer.match_slots(values, slots)
    table.match(table.find(every), optimizer, 5)
    assert_rows(table, values, slots)
    touched |= optimizer.match is not None
    np.testing.assert_array_equal(table.read(table.find(every)).flags, touched * DIRTY)


def assert_rows(table, values, slots) -> None:
    read = table.read(table.find(np.arange(ROWS)))
    assert_same(read.embeddings(), values)
    for name, slot in read.slots_by_name().items():
        assert_same(slot, slots[name])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", QUICK, ids=repr)
def test_kernels_have_the_bits_of_numpy(optimizer, device):
    check_bits(optimizer, "float32", 17, device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("number", range(len(EVERY)), ids=lambda number: repr(EVERY[number]))
def test_kernels_of_every_optimizer_have_the_bits_of_numpy(number, device):
    """In one dtype each, rows longer and shorter than a warp among them."""
    dtype, dim = [*SHAPES, ("float32", 45)][number % 5]
    check_bits(EVERY[number], dtype, dim, device)
