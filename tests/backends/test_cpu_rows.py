"""The CPU's row kernels, bit for bit against NumPy, ml_dtypes, and where it is installed PyTorch."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from kvemb.backends import intrinsics
from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import SGD, Adagrad
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import VALUE_DTYPES, Schema, SlotShape, dtype_of

FLOATS = ("float32", "float64", "float16", "bfloat16")
DIM = 5
KERNELS = CpuRows()
ADAGRADS = [Adagrad(0.3), Adagrad(0.1, 0.1, 1e-7), Adagrad(1.0, 0.0, 0.0)]


def dtype_named(name: str) -> Any:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return dtype_of(name)


def block_of(name: str, rows: int, slots: tuple[SlotShape, ...] = ()) -> RowBlock:
    schema = Schema(dtype_of("int64"), dtype_named(name), DIM, slots)
    block = RowBlock(schema, rows)
    block.keys[:] = np.arange(rows)
    block.scores[:] = 1.5
    if slots:
        block.slot(0)[:] = np.random.default_rng(8).random((rows, DIM))
    KERNELS.assign(block, np.arange(rows), numbers(schema.value_dtype, rows, 1), 0)
    block.flags[:] = 0
    return block


def numbers(dtype: Any, rows: int, seed: int) -> Any:
    """Values over the dtype's range, special ones of floats among them."""
    random = np.random.default_rng(seed)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, (rows, DIM), dtype=dtype, endpoint=True)
    values = random.normal(0, 1, (rows, DIM)) * 10.0 ** random.integers(-6, 4, (rows, DIM))
    values[: min(5, rows), 0] = [0.0, -0.0, np.inf, -np.inf, np.nan][: min(5, rows)]
    return values.astype(np.float32).astype(dtype)


def widened(array: Any) -> Any:
    """What kernels calculate in: 16-bit floats as float32."""
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def assert_bits(got: Any, expected: Any) -> None:
    """Equal to the bit, but that any NaN is as good as another."""
    assert got.dtype == expected.dtype
    if got.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):  # from signalling NaNs
            nan = np.isnan(got.astype(np.float64))
            np.testing.assert_array_equal(nan, np.isnan(expected.astype(np.float64)))
        got, expected = got[~nan], expected[~nan]
    assert got.tobytes() == expected.tobytes()


# Conversions of 16-bit floats.


@numba.njit
def loaded(elements, out):
    for i in range(len(elements)):
        out[i] = intrinsics.load(elements[i])


@numba.njit
def stored(values, out):
    for i in range(len(values)):
        out[i] = intrinsics.store(values[i], out[i])


@pytest.mark.parametrize(("name", "seen"), [("float16", np.uint16), ("bfloat16", np.int16)])
def test_every_16_bit_pattern_widens_as_numpy_does(name, seen):
    patterns = np.arange(65536, dtype=np.uint16)
    out = np.empty(65536, np.float32)
    loaded(patterns.view(seen), out)
    with np.errstate(invalid="ignore"):
        expected = patterns.view(dtype_named(name)).astype(np.float32)
    assert_bits(out, expected)


@pytest.mark.parametrize(("name", "seen", "low_bits"), [("float16", np.uint16, 13), ("bfloat16", np.int16, 16)])
def test_every_rounding_of_a_float32_is_numpys(name, seen, low_bits):
    # All patterns of the bits that stay, with the fractions that round down, tie, and round up below them.
    high = np.arange(1 << (32 - low_bits), dtype=np.uint32) << np.uint32(low_bits)
    half = 1 << (low_bits - 1)
    out = np.empty(len(high), np.uint16)
    for low in (0, 1, half - 1, half, half + 1, 2 * half - 1):
        values = (high | np.uint32(low)).view(np.float32)
        stored(values, out.view(seen))
        with np.errstate(all="ignore"):
            expected = values.astype(dtype_named(name))
        assert_bits(out.view(dtype_named(name)), expected)


def test_subnormal_halves_round_to_even():
    random = np.random.default_rng(0)
    values = np.concatenate(
        [
            random.uniform(-7e-5, 7e-5, 200_000).astype(np.float32),
            (np.arange(4096) * 2.0**-25).astype(np.float32),
            random.integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32),
        ]
    )
    out = np.empty(len(values), np.uint16)
    stored(values, out)
    with np.errstate(all="ignore"):
        assert_bits(out.view(np.float16), values.astype(np.float16))


# Moving rows.


@pytest.mark.parametrize("name", VALUE_DTYPES)
@pytest.mark.parametrize("slots", [(), (SlotShape("accumulator", DIM),)])
def test_rows_are_set_and_copied_out(name, slots):
    block = block_of(name, 40, slots)
    before = block.select(np.arange(40))
    values = numbers(block.schema.value_dtype, 6, 2)
    index = np.array([3, -1, 7, 3, 39, 0])
    KERNELS.assign(block, index, values, 12)
    out = np.zeros((6, DIM), block.schema.value_dtype)
    KERNELS.gather(block, index, out)
    expected = values.copy()
    expected[0] = values[3]
    expected[1] = 0
    assert out.tobytes() == expected.tobytes()
    changed = np.isin(np.arange(40), index)
    assert block.flags.tolist() == (changed * DIRTY).tolist()
    assert block.steps.tolist() == (changed * 12).tolist()
    for column in ("keys", "scores"):
        np.testing.assert_array_equal(getattr(block, column), getattr(before, column))
    np.testing.assert_array_equal(block.words[~changed], before.words[~changed])
    if slots:
        assert block.slot(0).tobytes() == before.slot(0).tobytes()


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_differences_are_added_in_the_values_own_dtype(name):
    block = block_of(name, 200)
    dtype = block.schema.value_dtype
    index = np.random.default_rng(3).integers(-1, 200, 500)
    old, new = numbers(dtype, 500, 4), numbers(dtype, 500, 5)
    expected = block.embeddings()
    with np.errstate(all="ignore"):
        for at, row in enumerate(index):
            if row >= 0:
                change = widened(new[at]) - widened(old[at])
                expected[row] = (widened(expected[row]) + change).astype(dtype)
    KERNELS.add(block, index, old, new, 3)
    assert_bits(block.embeddings(), expected)
    assert (block.flags[index[index >= 0]] == DIRTY).all()


# Optimizers.


def gradients(block: RowBlock, seed: int, rows: int) -> Any:
    grads = numbers(block.schema.slot_dtype, rows, seed)
    grads[rows // 2 :, 1] = 0.0
    return grads


@pytest.mark.parametrize("name", FLOATS)
def test_sgd_is_its_formula(name):
    block = block_of(name, 60)
    number = block.schema.slot_dtype.type
    index = np.array([*range(0, 60, 2), -1])
    grads = gradients(block, 6, len(index))
    rows, g = index[:-1], grads[:-1]
    expected = block.embeddings()
    with np.errstate(all="ignore"):
        expected[rows] = (widened(expected[rows]) - number(0.1) * g).astype(expected.dtype)
    KERNELS.apply(block, index, SGD(0.1), grads, 5)
    assert_bits(block.embeddings(), expected)
    assert block.steps[rows].tolist() == [5] * 30
    assert block.flags.tolist() == [DIRTY, 0] * 30


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("optimizer", ADAGRADS, ids=repr)
def test_adagrad_is_its_formula_over_many_steps(name, optimizer):
    block = block_of(name, 60, optimizer.shapes(DIM))
    number = block.schema.slot_dtype.type
    block.slot(0)[:] = optimizer.initial_accumulator_value
    expected, accumulator = block.embeddings(), block.slot(0).copy()
    index = np.array([-1, *range(0, 60, 2)])
    for step in range(4):
        grads = gradients(block, step, len(index))
        rows, g = index[1:], grads[1:]
        with np.errstate(all="ignore"):
            accumulator[rows] += g * g
            change = number(optimizer.learning_rate) * g / (np.sqrt(accumulator[rows]) + number(optimizer.epsilon))
            expected[rows] = (widened(expected[rows]) - change).astype(expected.dtype)
        KERNELS.apply(block, index, optimizer, grads, step)
        assert_bits(block.slot(0).copy(), accumulator)
        assert_bits(block.embeddings(), expected)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("optimizer", [SGD(0.1), *ADAGRADS[:2]], ids=repr)
def test_steps_are_pytorchs_within_rounding(optimizer):
    import torch

    schema = Schema(dtype_of("int64"), dtype_of("float32"), DIM, optimizer.shapes(DIM))
    block = RowBlock(schema, 20)
    start = np.random.default_rng(0).normal(size=(20, DIM)).astype(np.float32)
    KERNELS.assign(block, np.arange(20), start, 0)
    weights = torch.nn.Parameter(torch.from_numpy(start.copy()))
    if isinstance(optimizer, SGD):
        peer = torch.optim.SGD([weights], lr=0.1)
    else:
        block.slot(0)[:] = optimizer.initial_accumulator_value
        peer = torch.optim.Adagrad(
            [weights],
            lr=optimizer.learning_rate,
            initial_accumulator_value=optimizer.initial_accumulator_value,
            eps=optimizer.epsilon,
        )
    for step in range(20):
        grads = np.random.default_rng(step).normal(size=(20, DIM)).astype(np.float32)
        weights.grad = torch.from_numpy(grads.copy())
        peer.step()
        KERNELS.apply(block, np.arange(20), optimizer, grads, step)
    np.testing.assert_allclose(block.embeddings(), weights.detach().numpy(), rtol=2e-6, atol=1e-6)
