"""Kernels made of formulas: the Python that comes of one, and which rows a step touches."""

from __future__ import annotations

import platform
import re

import numba
import numpy as np
import pytest
from every_optimizer import single

from kvemb.backends.cpu_formulas import _kernels as compile_kernels
from kvemb.backends.cpu_formulas import source_of
from kvemb.optimizers import LAMB, SGD, Adagrad, AMSGrad, Ftrl, NAdam, Optimizer, RMSProp
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema, dtype_of


def of(optimizer: Optimizer) -> str:
    """The source of an optimizer's kernel."""
    return source_of("step", optimizer.formulas, tuple(slot.name for slot in optimizer.slots))


def test_only_a_formula_with_slots_reads_them_ahead():
    assert "_prefetch(_slots" in of(Adagrad())
    assert "_prefetch(_slots" not in of(SGD())


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
