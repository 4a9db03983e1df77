"""The threads over which the CPU's hot table splits a large batch. Kernels release the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import wait
from functools import cache

from kvemb.threads.parallel import cores
from kvemb.threads.pool import Threads


def in_parts(part: Callable[[int, int], object]) -> None:
    """Run part(number, parts) for every number, on all cores.

    Each thread takes the next number, so that a busy core does not delay the others. All parts have ended when this
    returns, or raises the error of a part.
    """
    parts = part_count()
    numbers = iter(range(parts))

    def run() -> None:
        for number in numbers:
            part(number, parts)

    others = [_pool().submit(run) for _ in range(cores() - 1)]
    try:
        run()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()


def in_ranges(count: int, work: Callable[[int, int], None], *, spread: bool) -> None:
    """Run work(start, stop) for ranges that cover 0 to count. spread: on all cores; else one range on this thread."""
    if spread:
        in_parts(lambda part, parts: work(count * part // parts, count * (part + 1) // parts))
    else:
        work(0, count)


def part_count() -> int:
    """Return the number of parts that a batch is split into: a power of two, more than there are cores."""
    return 2 << (cores() - 1).bit_length()


@cache
def _pool() -> Threads:
    return Threads(cores(), thread_name_prefix="kvemb-cpu")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # its threads exist in the parent only
