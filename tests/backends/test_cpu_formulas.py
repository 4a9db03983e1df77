"""Kernels made of formulas: the Python that comes of one, and which rows a step touches."""

from __future__ import annotations

import ast
import platform
import re

import numba
import numpy as np
import pytest
from every_optimizer import single

from kvemb.backends.cpu_formulas import _kernels as compile_kernels
from kvemb.backends.cpu_formulas import source_of
from kvemb.optimizers import LAMB, SGD, Adagrad, Adam, AMSGrad, Ftrl, NAdam, Optimizer, RMSProp
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema, dtype_of


def of(optimizer: Optimizer) -> str:
    """The source of an optimizer's kernel."""
    return source_of("step", optimizer.formulas, tuple(slot.name for slot in optimizer.slots))


def test_an_element_is_one_of_its_row_and_a_row_of_values_is_stored_as_its_dtype_is():
    source = of(Adagrad())
    assert isinstance(ast.parse(source).body[0], ast.FunctionDef)
    assert "w[j_0] = _store(_load(w[j_0])" in source
    assert "w = _values[_r, :dim]" in source
    assert "accumulator = _slots[_r, _at_accumulator:]" in source


def test_only_a_formula_with_slots_reads_them_ahead():
    assert "_prefetch(_slots" in of(Adagrad())
    assert "_prefetch(_slots" not in of(SGD())


def test_an_embedding_that_two_formulas_set_is_rounded_once():
    source = of(SGD(weight_decay=0.1, decoupled=True))
    assert (source.count("_load("), source.count("_store("), source.count("_wide[_j]")) == (1, 1, 2)
    assert of(SGD(weight_decay=0.1)).count("_wide[_j]") == 0


def test_a_gradient_that_a_formula_changes_is_copied_first():
    assert "if True or _next >= 0" in of(SGD(clip_value=1))
    assert "if False or _next >= 0" in of(SGD())


def test_names_of_formulas_that_follow_each_other_are_apart():
    source = of(SGD(weight_decay=0.1, decoupled=True))
    assert "learning_rate_0, weight_decay_0, learning_rate_1" in source


def test_the_count_of_steps_is_the_rows_or_the_variables():
    assert "_slots[_r, _at_steps] = _count_of_row" in of(Adam())
    assert "power(beta_1_0, _count_of_row)" in of(Adam())
    assert "power(beta_1_0, _count)" in of(Adam(bias_correction="global"))


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for instructions of x86")
@pytest.mark.parametrize("optimizer", [Adagrad(), AMSGrad(), NAdam(), RMSProp(centered=True), LAMB(), Ftrl()], ids=repr)
def test_arithmetic_is_of_vectors(optimizer):
    """Nothing else would notice a loop over so many rows that LLVM gives up."""
    schema = Schema(dtype_of("int64"), dtype_of("float32"), 16, optimizer.shapes(16))
    kernel, _ = compile_kernels(optimizer.formulas, tuple(slot.name for slot in optimizer.slots))
    function = numba.njit(error_model="numpy", _nrt=False)(kernel.py_func)
    rows = RowBlock(schema, 2)
    sums, columns = single(1), schema.slot_columns
    numbers = [each for one in optimizer.formulas for each in optimizer.numbers(one, schema.slot_dtype).values()]
    own = np.empty((2, 16), np.float32)
    function(
        np.array([0]), 0, 1, own, rows.values, rows.slots, own[:1].copy(), sums.first, sums.following, 16, 0,
        rows.steps, rows.flags, columns[0], columns[-1], 1.0, *columns[:-1], *numbers,
    )  # fmt: skip
    (text,) = function.inspect_asm().values()
    loops = sum("for j" in line for line in source_of("step", optimizer.formulas, ()).splitlines())
    assert len(re.findall(r"\bv?(?:mul|sub|add|div)ps\s", text)) >= 2 * loops
