"""Copying a row inside a kernel: in whole cache lines, then in ever smaller blocks, without calls or checks."""

from __future__ import annotations

from typing import Any

from kvemb.backends.intrinsics import copy_1, copy_2, copy_4, copy_8, copy_16, copy_32, copy_64, item_bytes
from kvemb.kernels.compiling import inlined


@inlined
def copy_row(to: Any, to_offset: Any, source: Any, offset: Any, count: Any) -> None:
    """Copy `count` elements between flat offsets of two contiguous arrays of the same dtype."""
    size = item_bytes(to)
    line = 64 // size
    done = 0
    while done + line <= count:
        copy_64(to, to_offset + done, source, offset + done)
        done += line
    if done + 32 // size <= count:
        copy_32(to, to_offset + done, source, offset + done)
        done += 32 // size
    if done + 16 // size <= count:
        copy_16(to, to_offset + done, source, offset + done)
        done += 16 // size
    if done + 8 // size <= count:
        copy_8(to, to_offset + done, source, offset + done)
        done += 8 // size
    if size <= 4 and done + 4 // size <= count:
        copy_4(to, to_offset + done, source, offset + done)
        done += 4 // size
    if size <= 2 and done + 2 // size <= count:
        copy_2(to, to_offset + done, source, offset + done)
        done += 2 // size
    if size == 1 and done < count:
        copy_1(to, to_offset + done, source, offset + done)
