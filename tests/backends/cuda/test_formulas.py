"""Kernels of optimizers on a GPU: the C that comes of a formula, and the bits of every one of them."""

from __future__ import annotations

import pytest

from kvemb.backends.cuda.formulas import source_of
from kvemb.optimizers import NAdam, Optimizer, RowWiseAdagrad
from kvemb.optimizers.arithmetic import Elements


def of(optimizer: Optimizer) -> str:
    """The C of an optimizer's kernel."""
    return source_of(optimizer.formulas, tuple(slot.name for slot in optimizer.slots))


def test_lanes_wait_for_each_other_around_an_element_that_all_use():
    lines = [line.strip() for line in of(RowWiseAdagrad()).splitlines()]
    at = lines.index("if (lane_ == 0) accumulator[0] = s_0;")
    assert lines[at - 1] == lines[at + 1] == "__syncwarp();"


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
