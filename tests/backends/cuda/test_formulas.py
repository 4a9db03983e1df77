"""Kernels of optimizers on a GPU: the C that comes of a formula, and the bits of every one of them."""

from __future__ import annotations

import pytest

from kvemb.backends.cuda.formulas import source_of, uses_buffers
from kvemb.optimizers import LAMB, SGD, Adagrad, Adam, NAdam, Optimizer, RowWiseAdagrad
from kvemb.optimizers.arithmetic import Elements


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
