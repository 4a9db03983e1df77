"""Formulas: kernels have the bits of NumPy, both are the published formulas in float64, and nothing else is let in."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import KINDS, SGD, Adagrad, Adam, Optimizer, RowWiseAdagrad
from kvemb.optimizers.arithmetic import Elements, Number, power
from kvemb.optimizers.formula import read
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema, dtype_of

ROWS = 40
KERNELS = CpuRows()
EVERY = [
    *(SGD(0.1), Adagrad(0.3), Adagrad(0.1, 0.1, 1e-7), RowWiseAdagrad(0.3), RowWiseAdagrad(0.1, 0.5, 1e-3)),
    *(Adam(0.1), Adam(0.01, 0.0, 0.5, 0.0), Adam(0.1, 0.999999, 0.999999, 1e-3)),
]


def block_of(optimizer: Optimizer, dtype: str, dim: int) -> RowBlock:
    """New rows with random embeddings."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    block = RowBlock(Schema(dtype_of("int64"), dtype_of(dtype), dim, optimizer.shapes(dim)), ROWS)
    start = np.random.default_rng(dim).normal(size=(ROWS, dim)).astype(block.schema.value_dtype)
    KERNELS.assign(block, np.arange(ROWS), start, 0)
    for at, slot in enumerate(optimizer.slots):
        block.slot(at)[:] = slot.initial
    return block


@pytest.mark.parametrize("dim", [1, 3, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_kernels_have_the_bits_of_numpy(optimizer, dtype, dim):
    block = block_of(optimizer, dtype, dim)
    values, slots = block.embeddings(), block.slots_by_name()
    for step in range(5):
        chance = np.random.default_rng(step)
        index = chance.permutation(ROWS)[:25]
        grads = chance.normal(size=(25, dim)).astype(block.schema.slot_dtype)
        grads[0] = [0.0, 1e-30, 1e18, np.inf, 0.0][step]
        of_rows = {name: slot[index] for name, slot in slots.items()}
        values[index] = optimizer.step(values[index], of_rows, grads)
        for name, slot in of_rows.items():
            slots[name][index] = slot
        KERNELS.apply(block, index, optimizer, grads, step)
        assert_same(block.embeddings(), values)
        for name, slot in block.slots_by_name().items():
            assert_same(slot, slots[name])


def assert_same(got: Any, expected: Any) -> None:
    """Equal to the bit, but that any NaN is as good as another."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    wide = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(wide[0]), np.isnan(wide[1]))
    same = ~np.isnan(wide[0])
    assert got[same].tobytes() == expected[same].tobytes()


# Against the formulas as they are published, in float64.


def published(optimizer: Any, w: Any, grads: list[Any]) -> Any:
    """The row (dim,) after a step with each gradient."""
    w = w.astype(np.float64)
    if isinstance(optimizer, Adam):  # torch.optim.Adam; Kingma and Ba, algorithm 1
        m = v = np.zeros(len(w))
        for t, g in enumerate(grads, 1):
            m = optimizer.beta_1 * m + (1 - optimizer.beta_1) * g
            v = optimizer.beta_2 * v + (1 - optimizer.beta_2) * g**2
            m_hat, v_hat = m / (1 - optimizer.beta_1**t), v / (1 - optimizer.beta_2**t)
            w = w - optimizer.learning_rate * m_hat / (np.sqrt(v_hat) + optimizer.epsilon)
        return w
    total = np.full(len(w), 1.0) * getattr(optimizer, "initial_accumulator_value", 0.0)
    for g in grads:
        if isinstance(optimizer, SGD):
            w = w - optimizer.learning_rate * g
            continue
        # torch.optim.Adagrad; FBGEMM's rowwise_adagrad: g_avg_square = sum(g ** 2) / D, added to one number a row.
        total = total + (np.mean(g**2) if isinstance(optimizer, RowWiseAdagrad) else g**2)
        w = w - optimizer.learning_rate * g / (np.sqrt(total) + optimizer.epsilon)
    return w


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("float64", 1e-10)])
@pytest.mark.parametrize("optimizer", EVERY, ids=repr)
def test_steps_are_the_published_ones(optimizer, dtype, tolerance):
    """Rows are touched in steps of their own; each is as if it were alone."""
    block = block_of(optimizer, dtype, 8)
    start, given = block.embeddings(), [[] for _ in range(ROWS)]
    for step in range(60):
        chance = np.random.default_rng(step)
        index = np.flatnonzero(chance.random(ROWS) < np.linspace(0.1, 1, ROWS))
        grads = chance.normal(size=(len(index), 8)).astype(block.schema.slot_dtype)
        KERNELS.apply(block, index, optimizer, grads, step)
        for row, grad in zip(index, grads, strict=True):
            given[row].append(grad.astype(np.float64))
    for row, got in enumerate(block.embeddings()):
        expected = published(optimizer, start[row], given[row])
        np.testing.assert_allclose(got, expected, rtol=tolerance * 10, atol=tolerance * max(1, np.abs(expected).max()))


def test_a_late_row_takes_the_first_step_of_any_row():
    """A count of all calls would make it 3.16 times the learning rate (TensorFlow's and SparseAdam's trap)."""
    block = block_of(Adam(0.1), "float32", 4)
    grads = np.full((1, 4), 3, np.float32)
    for step in range(1000):
        KERNELS.apply(block, np.array([0]), Adam(0.1), grads, step)
    before = block.embeddings()[1]
    KERNELS.apply(block, np.array([1]), Adam(0.1), grads, 1000)
    np.testing.assert_allclose(before - block.embeddings()[1], 0.1, rtol=1e-5)
    assert (block.slot(2)[0, 0], block.slot(2)[1, 0]) == (1000, 1)


def test_a_count_that_float32_cannot_go_on_with_stays_and_changes_nothing():
    block = block_of(Adam(0.1, 0.9, 0.999999), "float32", 2)
    block.slot(0)[:], block.slot(1)[:], block.slot(2)[:] = 1, 1, 2**24 - 1
    before = block.embeddings()[0].astype(np.float64)
    for _ in range(3):
        KERNELS.apply(block, np.array([0]), Adam(0.1, 0.9, 0.999999), np.ones((1, 2), np.float32), 0)
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


# What a formula is.


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_formula_names_slots_and_numbers_as_the_optimizer_does(kind):
    found = read(kind.formula)
    assert list(found.rows[2:]) == [slot.name for slot in kind().slots]
    assert all(isinstance(getattr(kind(), name), float) for name in found.numbers)
    assert not {"key", "value", "score", "step", "scale"} & set(found.rows), "columns of exports"


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


def in_another_order(w: Elements, g: Elements, dim: int) -> None:
    w[0] = g[0]


def with_numbers_first(dim: int, rate: Number, w: Elements, g: Elements) -> None:
    w[0] = rate * g[0]


@pytest.mark.parametrize(
    "function",
    [
        *(with_if, with_a_literal, with_a_call, adding_in_place, with_a_power, with_another_loop),
        *(with_a_name_of_the_kernel, in_another_order, with_numbers_first),
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
    from kvemb.rows.schema import Schema, dtype_of

    for kind in KINDS.values():
        schema = Schema(dtype_of("int64"), dtype_of("float32"), 4, kind().shapes(4))
        cpu_rows.CpuRows().apply(RowBlock(schema, 2), np.array([1]), kind(), np.ones((1, 4), np.float32), 0)
        kernel = cpu_formulas._kernel(kind.formula)
        print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    told = []
    for _ in range(2):
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.splitlines())
    assert told == [["0 1"] * len(KINDS), ["1 0"] * len(KINDS)]
