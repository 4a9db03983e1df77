"""The CPU's row kernels, bit for bit against NumPy, ml_dtypes, and where it is installed PyTorch."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from schemas import dtype_named

from kvemb.backends import intrinsics
from kvemb.backends.cpu_rows import CpuRows
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.schema import VALUE_DTYPES, Schema, SlotShape, dtype_of

DIM = 5
KERNELS = CpuRows()


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
