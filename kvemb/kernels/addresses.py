"""Memory by its address, as kernels need it for mapped files: loads, copies, prefetches, and advice to the kernel.

Addresses are int64. Nothing here checks one: callers do, before they use what a file says.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvemb.kernels.compiling import intrinsic

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)
LINE_BYTES = 64


def _load(bits: int, seen: Any) -> Any:
    """Return an intrinsic that loads a little-endian number of so many bits."""

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = builder.load(builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return builder.zext(number, _WORD) if bits < 64 else number

        return seen(types.int64), codegen

    return load


load_8, load_32, load_64 = _load(8, types.int64), _load(32, types.int64), _load(64, types.uint64)


def _store(bits: int, taken: Any) -> Any:
    """Return an intrinsic that stores the low so many bits of a number, little-endian."""

    @intrinsic
    def store(typingctx: Any, address: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = builder.trunc(args[1], ir.IntType(bits)) if bits < 64 else args[1]
            builder.store(number, builder.inttoptr(args[0], ir.IntType(bits).as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, taken), codegen

    return store


store_8, store_32, store_64 = _store(8, types.int64), _store(32, types.int64), _store(64, types.uint64)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line of an address. Never faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [builder.inttoptr(args[0], cgutils.voidptr_t), i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def copy(typingctx: Any, to: Any, source: Any, nbytes: Any) -> Any:
    """Copy bytes between two addresses that do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(each, cgutils.voidptr_t) for each in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def narrow_8(typingctx: Any, source: Any, to: Any) -> Any:
    """Store 8 numbers of type uint32 as 8 bytes. Return whether all of them are below 0x80."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide, narrow = ir.VectorType(ir.IntType(32), 8), ir.VectorType(_BYTE, 8)
        numbers = builder.load(builder.inttoptr(args[0], wide.as_pointer()), align=1)
        builder.store(builder.trunc(numbers, narrow), builder.inttoptr(args[1], narrow.as_pointer()), align=1)
        small = builder.icmp_unsigned("<", numbers, ir.Constant(wide, [0x80] * 8))
        return builder.icmp_signed("==", builder.bitcast(small, _BYTE), _BYTE(-1))

    return types.boolean(types.int64, types.int64), codegen


@intrinsic
def reversed_bytes(typingctx: Any, word: Any) -> Any:
    """Return a uint64 with its bytes in the opposite order: a big-endian number that load_64 loaded."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def folded_product(typingctx: Any, a: Any, b: Any) -> Any:
    """Return the low half of the 128-bit product of two uint64, xor its high half."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, wide(64)), _WORD)
        return builder.xor(builder.trunc(product, _WORD), high)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def add_stripe(typingctx: Any, sums: Any, data: Any, secret: Any) -> Any:
    """Add 64 bytes to the eight sums of XXH3, which are one vector: all three are addresses."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_WORD, 8)
        places = [builder.inttoptr(each, vector.as_pointer()) for each in args]
        sums, data, secret = (builder.load(place, align=1) for place in places)
        order = [ir.IntType(32)(lane ^ 1) for lane in range(8)]
        swapped = builder.shuffle_vector(
            data, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), 8), order)
        )
        keyed = builder.xor(data, secret)
        low = builder.and_(keyed, ir.Constant(vector, [0xFFFFFFFF] * 8))
        product = builder.mul(low, builder.lshr(keyed, ir.Constant(vector, [32] * 8)))
        builder.store(builder.add(builder.add(sums, swapped), product), places[0], align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def advise(typingctx: Any, address: Any, nbytes: Any, advice: Any) -> Any:
    """Call madvise(2) for a range of pages; return 0, or -1 if it failed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(i32, [cgutils.voidptr_t, _WORD, i32]), "madvise"
        )
        address = builder.inttoptr(args[0], cgutils.voidptr_t)
        return builder.sext(builder.call(function, [address, args[1], builder.trunc(args[2], i32)]), _WORD)

    return types.int64(types.int64, types.int64, types.int64), codegen
