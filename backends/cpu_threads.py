"""The threads over which the CPU's hot table splits a large batch. No thread holds the GIL while it works.

A kernel that `in_parts` makes is one loop over the parts of a batch. Each thread in it takes the next part, so that a
busy core does not delay the others. The threads are PyTorch's (kvemb.backends.openmp) where they can be used, else
those of a pool. The parts are the same, and so are the results.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from kvemb.backends import openmp
from kvemb.backends.cpu_cores import OtherCores
from kvemb.backends.intrinsics import next_number
from kvemb.kernels.compiling import inlined, intrinsic, kernel
from kvemb.rows.hashing import Positions
from kvemb.threads.parallel import cores
from kvemb.threads.pool import Threads

# A kernel of in_parts. Its arguments: the address of GOMP_parallel, or 0; the next part's number (1,); the number of
# parts; the arguments of each part.
InParts = Callable[[int, Any, int, tuple[Any, ...]], None]


def run_parts(work: InParts, *arguments: Any) -> None:
    """Run all part_count() parts of a batch, on all cores. They have ended when this returns or raises."""
    number = np.zeros(1, np.int64)
    if team := openmp.team():
        work(team, number, part_count(), arguments)
        return
    pool, threads = _pool()
    threads.avoid_this_core()
    others = [pool.submit(work, 0, number, part_count(), arguments) for _ in range(cores() - 1)]
    try:
        work(0, number, part_count(), arguments)
    finally:
        begun = [other for other in others if not other.cancel()]
        for other in begun:
            other.exception()  # waits
    for other in begun:
        other.result()


def joined_parts(values: Positions, bounds: Positions, counts: Positions) -> Positions:
    """Return the first counts[part] values of each range. If there are none or one range has all, a view."""
    if not counts.any():
        return values[:0]
    return np.concatenate([values[at : at + count] for at, count in zip(bounds[:-1], counts, strict=True)])


def part_count() -> int:
    """Return the number of parts that a batch is split into: a power of two, more than there are cores."""
    return 2 << (cores() - 1).bit_length()


def even_bounds(count: int) -> Positions:
    """Return the bounds (parts + 1,) of about equal ranges that cover 0 to count, one for each part."""
    return count * np.arange(part_count() + 1) // part_count()


def in_parts(part: Any, source: bytes = b"") -> InParts:
    """Compile a loop over parts from a kernel part(number, arguments). source: see kernel."""
    part, own = inlined(part), source + f"{part.__module__}.{part.__qualname__}".encode()

    def run(team: Any, number: Any, parts: Any, arguments: Any) -> None:
        if team != 0:
            _in_team(team, number, parts, arguments)
            return
        taken = next_number(number)
        while taken < parts:
            part(taken, arguments)
            taken = next_number(number)

    return kernel(run, own)  # type: ignore[no-any-return]


@intrinsic
def _in_team(typingctx: Any, team: Any, number: Any, parts: Any, arguments: Any) -> Any:
    """Call GOMP_parallel, whose address is `team`, with a function that calls the calling kernel, whose team is then 0.

    OpenMP calls that function on each of its threads with a pointer to the other arguments, which are on this stack.
    The loop is compiled once: a kernel of its own would be compiled for itself, and again as a part of its caller.
    """
    given = types.int64, number, parts, arguments

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = cgutils.voidptr_t, ir.IntType(32)
        on_thread = ir.FunctionType(ir.VoidType(), [pointer])
        entry = ir.Function(builder.module, on_thread, builder.module.get_unique_name(f"{builder.function.name}.part"))
        entry.linkage = "internal"
        inside = ir.IRBuilder(entry.append_basic_block())
        data = cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, args[1:]))
        taken = inside.load(inside.bitcast(entry.args[0], data.type))
        no_team = context.get_constant(types.int64, 0)
        context.call_conv.call_function(
            inside, builder.function, types.none, given, [no_team, *cgutils.unpack_tuple(inside, taken, len(args) - 1)]
        )
        inside.ret_void()
        begin = ir.FunctionType(ir.VoidType(), [on_thread.as_pointer(), pointer, number, number]).as_pointer()
        data = builder.bitcast(data, pointer)
        builder.call(builder.inttoptr(args[0], begin), [entry, data, number(0), number(0)])
        return context.get_dummy_value()

    return types.void(types.int64, number, parts, arguments), codegen


@cache
def _pool() -> tuple[Threads, OtherCores]:
    threads = OtherCores()
    return Threads(cores(), thread_name_prefix="kvemb-cpu", initializer=threads.add_this_thread), threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads exist in the parent only
