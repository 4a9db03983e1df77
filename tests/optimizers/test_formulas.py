"""Formulas: kernels have the bits of NumPy, both are the published formulas in float64, and nothing else is let in."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext

import numpy as np
import pytest
from every_optimizer import block_of, single
from programs import run_python

from kvemb.backends import cpu_formulas
from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import KINDS, LAMB, SGD, Adagrad, Adam
from kvemb.optimizers.arithmetic import (
    Count,
    Elements,
    Number,
    Table,
    entry,
    larger,
    power,
    root_power,
    smaller,
    sum_of_squares,
    where_positive,
)
from kvemb.optimizers.formula import read, uses_buffers

ROWS = 40
KERNELS = CpuRows()


def test_a_late_row_takes_the_first_step_of_any_row():
    """A count of all calls would make it 3.16 times the learning rate (TensorFlow's and SparseAdam's trap)."""
    block = block_of(Adam(0.1), "float32", 4, ROWS)
    grads = np.full((1, 4), 3, np.float32)
    for step in range(1000):
        KERNELS.apply(block, np.array([0]), Adam(0.1), grads, step, single(1), 0)
    before = block.embeddings()[1]
    KERNELS.apply(block, np.array([1]), Adam(0.1), grads, 1000, single(1), 0)
    np.testing.assert_allclose(before - block.embeddings()[1], 0.1, rtol=1e-5)
    assert (block.slot(2)[0, 0], block.slot(2)[1, 0]) == (1000, 1)


def test_a_count_that_float32_cannot_go_on_with_stays_and_changes_nothing():
    block = block_of(Adam(0.1, 0.9, 0.999999), "float32", 2, ROWS)
    block.slot(0)[:], block.slot(1)[:], block.slot(2)[:] = 1, 1, 2**24 - 1
    before = block.embeddings()[0].astype(np.float64)
    for _ in range(3):
        KERNELS.apply(block, np.array([0]), Adam(0.1, 0.9, 0.999999), np.ones((1, 2), np.float32), 0, single(1), 0)
        assert block.slot(2)[0, 0] == 2**24
    np.testing.assert_allclose(before - block.embeddings()[0], 0.3, rtol=1e-6)


@pytest.mark.parametrize("base", [0.0, 0.5, 0.9, 0.999, 0.99999, 0.999999])
def test_powers_are_right_to_ten_digits_of_what_is_left_of_one(base):
    exponents = np.array([0, 1, 2, 3, 7, 10, 99, 1000, 12345, 10**5, 10**6, 2**20 + 1, 2**24 - 1, 2**24], np.float32)
    with localcontext(prec=50):
        exact = [1 - Decimal(base) ** int(exponent) if exponent else Decimal(0) for exponent in exponents]
    np.testing.assert_allclose(1 - power(base, exponents), [float(number) for number in exact], rtol=1e-10)
    odd = power(base, np.array([-1, np.nan, np.inf, -np.inf, 1e30], np.float32))
    assert odd.tolist() == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("exponent", [0.0, 0.1, 0.5, 0.75, 1.0, 2.0])
def test_powers_of_any_exponent_are_right_to_thirteen_digits(exponent):
    bases = np.r_[np.exp(np.random.default_rng(1).normal(size=200) * 20), 5e-324, 1.0]
    np.testing.assert_allclose(root_power(bases, exponent), bases**exponent, rtol=1e-13)
    odd = [0.0 if exponent else 1.0, np.inf if exponent else 1.0, np.nan if exponent else 1.0]
    np.testing.assert_array_equal(root_power(np.array([0.0, np.inf, np.nan]), exponent), odd)


def test_choices_say_what_a_nan_and_an_end_give():
    a, b = np.array([1.0, 2.0, np.nan, 1.0]), np.array([2.0, 1.0, 1.0, np.nan])
    np.testing.assert_array_equal(larger(a, b), [2, 2, 1, np.nan])
    np.testing.assert_array_equal(smaller(a, b), [1, 1, 1, np.nan])
    np.testing.assert_array_equal(where_positive(np.array([1.0, 0.0, -1.0, np.nan]), 1, 2), [1, 2, 2, 2])
    table = np.array([1.0, 2.0, 3.0])
    assert entry(table, np.array([-1, 0, 2, 3, 1e30, np.nan])).tolist() == [1, 1, 3, 3, 3, 1]


def test_squares_are_summed_in_sixteen_parts():
    """So that vector instructions may do it: another order would give other bits."""
    row = np.random.default_rng(0).normal(size=37).astype(np.float32).astype(np.float64)
    parts = [row[k] * row[k] + row[16 + k] * row[16 + k] for k in range(16)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [parts[k] + parts[half + k] for k in range(half)]
    for k in range(32, 37):
        parts[0] = parts[0] + row[k] * row[k]

    class Columns:
        array = row[None].astype(np.float32)

    assert sum_of_squares(Columns()).tolist() == parts


# What a formula is.


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_formula_names_slots_and_numbers_as_the_optimizer_does(kind):
    optimizer = kind()
    rows = {row for function in optimizer.formulas for row in read(function).rows}
    counts = any(read(function).count for function in optimizer.formulas)
    assert {slot.name for slot in optimizer.slots} | {"w", "g"} == rows | ({"steps"} if counts else set())
    for found in map(read, optimizer.formulas):
        assert all(isinstance(getattr(optimizer, name), (float, bool)) for name in set(found.numbers) - found.tables)
        assert all(isinstance(getattr(optimizer, name), np.ndarray) for name in found.tables)
    assert not {"key", "value", "score", "step", "scale"} & rows, "columns of exports"
    assert "learning_rate" in optimizer.to_json()


def test_a_formula_says_what_it_reads_and_sets():
    def formula(
        dim: int, w: Elements, g: Elements, m: Elements, t: Count, rate: np.float64, epsilon: Number, table: Table
    ) -> None:
        m[0] = sum_of_squares(w) + entry(table, t) * rate
        for j in range(dim):
            g[j] = epsilon

    found = read(formula)
    assert (found.rows, found.numbers, found.count) == (("w", "g", "m"), ("rate", "epsilon", "table"), "t")
    assert (found.wide, found.tables) == ({"rate"}, {"table"})
    assert (found.sets, found.summed) == ({"m", "g"}, {"w"})


def test_buffers_are_for_gradients_that_change_and_for_embeddings_that_are_rounded_once():
    assert uses_buffers(Adagrad().formulas) == (False, False)
    assert uses_buffers(SGD(clip_value=1).formulas) == (True, False)
    assert uses_buffers(SGD(weight_decay=0.1, decoupled=True).formulas) == (False, True)
    assert uses_buffers(LAMB().formulas) == (True, True)


def with_if(dim: int, w: Elements, g: Elements) -> None:
    if w[0]:
        w[0] = g[0]


def with_a_literal(dim: int, w: Elements, g: Elements) -> None:
    w[0] = 0.1 * g[0]


def with_a_call(dim: int, w: Elements, g: Elements) -> None:
    w[0] = np.exp(g[0])


def adding_in_place(dim: int, w: Elements, g: Elements) -> None:
    w[0] += g[0]


def with_a_power(dim: int, w: Elements, g: Elements) -> None:
    w[0] = g[0] ** 2


def with_another_loop(dim: int, w: Elements, g: Elements) -> None:
    for j in range(3):
        w[j] = g[j]


def with_a_name_of_the_kernel(dim: int, w: Elements, g: Elements) -> None:
    _r = 3
    w[_r] = g[0]


def with_a_sum_of_no_row(dim: int, w: Elements, g: Elements) -> None:
    w[0] = sum_of_squares(g[0])


def in_another_order(w: Elements, g: Elements, dim: int) -> None:
    w[0] = g[0]


def with_numbers_first(dim: int, rate: Number, w: Elements, g: Elements) -> None:
    w[0] = rate * g[0]


@pytest.mark.parametrize(
    "function",
    [
        *(with_if, with_a_literal, with_a_call, adding_in_place, with_a_power, with_another_loop),
        *(with_a_name_of_the_kernel, with_a_sum_of_no_row, in_another_order, with_numbers_first),
    ],
)
def test_what_kernels_and_numpy_could_do_differently_is_refused(function):
    with pytest.raises(TypeError, match=r"a formula (cannot have|is a function of dim)"):
        read(function)


PROGRAM = """
    import numpy as np
    from kvemb.backends import cpu_formulas, cpu_rows
    from kvemb.optimizers import KINDS
    from kvemb.rows.block import RowBlock
    from kvemb.rows.hashing import Unique
    from kvemb.rows.schema import Schema, dtype_of

    # Formulas of the same names have other slots.
    for kind in (KINDS["nadam"](), KINDS["nadam"](bias_correction="global")):
        shapes = kind.shapes(4)
        schema = Schema(dtype_of("int64"), dtype_of("float32"), 4, shapes)
        rows, sums = RowBlock(schema, 2), Unique(np.array([1])).sums
        cpu_rows.CpuRows().apply(rows, np.array([1]), kind, np.ones((1, 4), np.float32), 0, sums, 0)
        kernel, _ = cpu_formulas._kernels(kind.formulas, tuple(shape.name for shape in shapes))
        print(sum(kernel._cache_hits.values()), sum(kernel._cache_misses.values()))
"""


@pytest.mark.slow
def test_threads_that_need_a_kernel_at_once_make_it_once(monkeypatch):
    """Python that is parsed in two threads at once may fail in CPython."""
    made, real = [], cpu_formulas.source_of

    def slow(*arguments):
        made.append(arguments)
        time.sleep(0.05)
        return real(*arguments)

    monkeypatch.setattr(cpu_formulas, "source_of", slow)
    functions = (*Adam(0.1).formulas, *LAMB(0.1).formulas)  # which no optimizer has
    with ThreadPoolExecutor(4) as threads:
        kernels = [threads.submit(cpu_formulas._kernels, functions, ("m", "v")) for _ in range(4)]
    assert len({id(kernel.result()) for kernel in kernels}) == 1
    assert len(made) == 1


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = []
    for _ in range(2):
        done = run_python(PROGRAM, env=environment)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.splitlines())
    assert told == [["0 1"] * 2, ["1 0"] * 2]
