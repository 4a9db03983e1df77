"""What numba lacks: operations on bytes, bits and cache lines, atomic additions, 16-bit floats, optional counts.

Kernels see float16 as uint16 and bfloat16 as int16 (kvemb.rows.block); arithmetic is done in float32, and the result is
rounded once, to nearest even, as NumPy and ml_dtypes do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvemb.kernels.compiling import compiled, inlined_by_types, intrinsic
from kvemb.optimizers.arithmetic import LANES

# Bytes of a cache line, which one prefetch() loads.
LINE_BYTES = 64


def _pointer(context: Any, builder: Any, signature: Any, args: Any, array: int = 0) -> Any:
    """Return the address of an array's element; in args, its flat offset follows the array."""
    data = context.make_array(signature.args[array])(context, builder, args[array]).data
    return builder.gep(data, [args[array + 1]])


@intrinsic
def prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    """Prefetch the cache line of the array's element at a flat offset. Never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(_pointer(context, builder, signature, args), cgutils.voidptr_t)
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


def _sixteen(context: Any, builder: Any, signature: Any, args: Any, kind: Any, align: int) -> Any:
    """Return a vector of the 16 elements of an array from a flat offset on."""
    pointer = _pointer(context, builder, signature, args)
    return builder.load(builder.bitcast(pointer, ir.VectorType(kind, 16).as_pointer()), align=align)


def _repeated(builder: Any, sixteen: Any, value: Any) -> Any:
    """Return the value 16 times, as a vector to compare a vector with."""
    undefined = ir.Constant(sixteen.type, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), 16), None)
    return builder.shuffle_vector(builder.insert_element(undefined, value, ir.IntType(32)(0)), undefined, zeros)


def _mask(builder: Any, compared: Any) -> Any:
    return builder.zext(builder.bitcast(compared, ir.IntType(16)), ir.IntType(64))


def _lowest(builder: Any, sixteen: Any, less: Any) -> Any:
    """Return the lowest element of a vector of 16. less: compares two vectors."""
    for half in (8, 4, 2, 1):
        low, high = (
            builder.shuffle_vector(
                sixteen, sixteen, ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(at, at + half)))
            )
            for at in (0, half)
        )
        sixteen = builder.select(less("<", high, low), high, low)
    return builder.extract_element(sixteen, ir.IntType(32)(0))


@intrinsic
def lowest_of_16(typingctx: Any, scores: Any, offset: Any) -> Any:
    """Return the lowest of the 16 scores from scores[offset] on; any of them if one is NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sixteen = _sixteen(context, builder, signature, args, ir.DoubleType(), 8)
        return _lowest(builder, sixteen, builder.fcmp_ordered)

    return types.float64(scores, types.intp), codegen


@intrinsic
def smallest_key(typingctx: Any, keys: Any, offset: Any, mask: Any) -> Any:
    """Return the smallest of those of the 16 keys from keys[offset] on that are in a mask; if none is, the largest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.IntType(64)
        sixteen = _sixteen(context, builder, signature, args, kind, 8)
        chosen = builder.bitcast(builder.trunc(args[2], ir.IntType(16)), ir.VectorType(ir.IntType(1), 16))
        others = ir.Constant(sixteen.type, [(1 << 63) - 1] * 16)
        return _lowest(builder, builder.select(chosen, sixteen, others), builder.icmp_signed)

    return types.int64(keys, types.intp, types.uint64), codegen


@intrinsic
def equal_scores(typingctx: Any, scores: Any, offset: Any, score: Any) -> Any:
    """Return a uint64 mask of which of the 16 scores from scores[offset] on equal a score; lowest bit first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sixteen = _sixteen(context, builder, signature, args, ir.DoubleType(), 8)
        return _mask(builder, builder.fcmp_ordered("==", sixteen, _repeated(builder, sixteen, args[2])))

    return types.uint64(scores, types.intp, types.float64), codegen


@intrinsic
def equal_keys(typingctx: Any, keys: Any, offset: Any, key: Any) -> Any:
    """Return a uint64 mask of which of the 16 keys from keys[offset] on equal a key; lowest bit first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sixteen = _sixteen(context, builder, signature, args, ir.IntType(64), 8)
        return _mask(builder, builder.icmp_signed("==", sixteen, _repeated(builder, sixteen, args[2])))

    return types.uint64(keys, types.intp, types.int64), codegen


@intrinsic
def equal_bytes(typingctx: Any, words: Any, offset: Any, byte: Any) -> Any:
    """Return a uint64 mask of which of the 16 bytes from words[offset] on equal a byte; lowest bit first."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        sixteen = _sixteen(context, builder, signature, args, ir.IntType(8), 8)
        return _mask(builder, builder.icmp_unsigned("==", sixteen, _repeated(builder, sixteen, args[2])))

    return types.uint64(words, types.intp, types.uint8), codegen


def _copier(nbytes: int) -> Any:
    """Return an intrinsic that copies nbytes between two arrays, at offsets in bytes, without checks.

    It compiles only for contiguous arrays.
    """

    @intrinsic
    def copy(typingctx: Any, to: Any, to_offset: Any, source: Any, offset: Any) -> Any:
        if (to.layout, source.layout) != ("C", "C"):
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            block = ir.VectorType(ir.IntType(8), nbytes).as_pointer()

            def place(array: int) -> Any:
                data = context.make_array(signature.args[array])(context, builder, args[array]).data
                return builder.bitcast(builder.gep(builder.bitcast(data, cgutils.voidptr_t), [args[array + 1]]), block)

            builder.store(builder.load(place(2), align=1), place(0), align=1)
            return context.get_dummy_value()

        return types.void(to, types.intp, source, types.intp), codegen

    return copy


copy_64, copy_32, copy_16, copy_8, copy_4, copy_2, copy_1 = (_copier(1 << bit) for bit in range(6, -1, -1))


@intrinsic
def item_bytes(typingctx: Any, array: Any) -> Any:
    """Return an array's itemsize as a constant; numba itself would read it from memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_constant(types.intp, array.dtype.bitwidth // 8)

    return types.intp(array), codegen


@intrinsic
def bits_set(typingctx: Any, word: Any) -> Any:
    """Count the bits that are set in a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Count the zero bits below the lowest set bit of a uint64, which must not be 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


@intrinsic
def sum_of_blocks(typingctx: Any, row: Any, count: Any) -> Any:
    """Sum the squares of an array's first `count` elements, a multiple of LANES, as arithmetic.sum_of_squares does."""
    if row.layout != "C" or row.ndim != 1:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.DoubleType(), LANES)
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        block = ir.VectorType(data.type.pointee, LANES)
        sums = cgutils.alloca_once_value(builder, ir.Constant(wide, [0.0] * LANES))
        blocks = builder.udiv(args[1], context.get_constant(types.intp, LANES))
        with cgutils.for_range(builder, blocks) as loop:
            place = builder.gep(data, [builder.mul(loop.index, context.get_constant(types.intp, LANES))])
            elements = builder.load(builder.bitcast(place, block.as_pointer()), align=1)
            if elements.type != wide:
                elements = builder.fpext(elements, wide)
            builder.store(builder.fadd(builder.load(sums), builder.fmul(elements, elements)), sums)
        total, half = builder.load(sums), LANES // 2
        while half:
            low, high = (ir.Constant(ir.VectorType(ir.IntType(32), half), [*range(at, at + half)]) for at in (0, half))
            total = builder.fadd(*(builder.shuffle_vector(total, total, part) for part in (low, high)))
            half //= 2
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.float64(row, types.intp), codegen


@intrinsic
def atomic_add(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Add atomically to the array's element at a flat offset."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("fadd", _pointer(context, builder, signature, args), args[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float64), codegen


@intrinsic
def next_number(typingctx: Any, counter: Any) -> Any:
    """Add 1 atomically to the first element of an int64 array; return what it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, context.get_constant(types.int64, 1), "monotonic")

    return types.int64(counter), codegen


@intrinsic
def _bits_of_float(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def _float_of_bits(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


def load(element: Any) -> Any:
    """Return an element of a values array as a number for arithmetic."""
    raise TypeError("load is compiled, not called")


def store(value: Any, element: Any) -> Any:
    """Return a number in the representation of a values array with elements like `element`."""
    raise TypeError("store is compiled, not called")


@inlined_by_types(load)
def _load(element: Any) -> Any:
    def from_half(element: Any) -> Any:
        return _half_to_float(element)

    def from_bfloat(element: Any) -> Any:
        return _float_of_bits(np.uint32(np.uint32(np.uint16(element)) << np.uint32(16)))

    def same(element: Any) -> Any:
        return element

    return {types.uint16: from_half, types.int16: from_bfloat}.get(element, same)


@inlined_by_types(store)
def _store(value: Any, element: Any) -> Any:
    def to_half(value: Any, element: Any) -> Any:
        return _float_to_half(np.float32(value))

    def to_bfloat(value: Any, element: Any) -> Any:
        return _float_to_bfloat(np.float32(value))

    def same(value: Any, element: Any) -> Any:
        return value

    return {types.uint16: to_half, types.int16: to_bfloat}.get(element, same)


def uses_at(counts: Any, position: int) -> float:
    """Return the number of uses at a position. counts: None if it is one everywhere."""
    raise TypeError("uses_at is compiled, not called")


@inlined_by_types(uses_at)
def _uses_at(counts: Any, position: Any) -> Any:
    # Decided when a kernel is compiled: a branch for every row would make lookups a tenth slower.
    def given(counts: Any, position: Any) -> Any:
        return float(counts[position])

    def one(counts: Any, position: Any) -> Any:
        return 1.0

    return one if isinstance(counts, types.NoneType) else given


@compiled
def _half_to_float(element: Any) -> Any:
    sign = np.uint32(np.uint32(element & np.uint16(0x8000)) << np.uint32(16))
    exponent = np.uint32((element >> np.uint16(10)) & np.uint16(0x1F))
    fraction = np.uint32(element & np.uint16(0x3FF))
    if exponent == 0:
        magnitude = np.float32(fraction) * np.float32(2.0**-24)
        return -magnitude if sign else magnitude
    if exponent == 31:
        return _float_of_bits(np.uint32(sign | np.uint32(0x7F800000) | np.uint32(fraction << np.uint32(13))))
    return _float_of_bits(
        np.uint32(sign | np.uint32((exponent + np.uint32(112)) << np.uint32(23)) | np.uint32(fraction << np.uint32(13)))
    )


@compiled
def _float_to_half(value: Any) -> Any:
    bits = _bits_of_float(value)
    sign = np.uint16((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if magnitude > np.uint32(0x7F800000):
        return np.uint16(sign | np.uint16(0x7E00))
    if magnitude >= np.uint32(0x477FF000):  # 65520 and above round to infinity
        return np.uint16(sign | np.uint16(0x7C00))
    if magnitude < np.uint32(0x38800000):  # subnormal: let float addition align and round the fraction
        shifted = _bits_of_float(np.float32(_float_of_bits(magnitude) + np.float32(0.5)))
        return np.uint16(sign | np.uint16(shifted - np.uint32(0x3F000000)))
    rounded = np.uint32(magnitude + np.uint32(0xFFF) + np.uint32((magnitude >> np.uint32(13)) & np.uint32(1)))
    return np.uint16(sign | np.uint16((rounded - np.uint32(0x38000000)) >> np.uint32(13)))


@compiled
def _float_to_bfloat(value: Any) -> Any:
    bits = _bits_of_float(value)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.int16(np.uint16(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000)) | np.uint16(0x7FC0))
    return np.int16(
        np.uint16((bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
    )
