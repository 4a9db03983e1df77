"""Kernels made of formulas: the Python that comes of one, and which rows a step touches."""

from __future__ import annotations

import ast

import numpy as np
from blocks import rows_of

from kvemb.backends.cpu_formulas import source_of, take_step
from kvemb.optimizers import SGD, Adagrad
from kvemb.optimizers.formula import read
from kvemb.rows.block import DIRTY
from kvemb.rows.hashing import Sums


def test_an_element_is_one_of_its_row_and_a_row_of_values_is_stored_as_its_dtype_is():
    source = source_of("step", read(Adagrad.formula))
    assert isinstance(ast.parse(source).body[0], ast.FunctionDef)
    assert "w[j] = _store(_load(w[j])" in source
    assert "w = _values[_r, :dim]" in source
    assert "accumulator = _slots[_r, _at_accumulator:]" in source


def test_only_a_formula_with_slots_reads_them_ahead():
    assert "_prefetch(_slots" in source_of("step", read(Adagrad.formula))
    assert "_prefetch(_slots" not in source_of("step", read(SGD.formula))


def test_a_step_marks_the_rows_it_takes_and_a_negative_place_is_none():
    rows = rows_of([1, 2, 3, 4], 1.0)
    grads = np.array([[1, 2], [9, 9], [4, 6]], np.float32)
    take_step(SGD(0.5), np.array([2, -1, 0]), rows, grads, 7, Sums.of_single_rows(3), 0, 3)
    assert rows.values.tolist() == [[-1.0, -2.0], [1.0, 1.0], [0.5, 0.0], [1.0, 1.0]]
    assert rows.steps.tolist() == [7, 0, 7, 0]
    assert rows.flags.tolist() == [DIRTY, 0, DIRTY, 0]
