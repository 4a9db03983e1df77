"""Copying a row inside a kernel: in whole cache lines, then in ever smaller blocks, without calls or checks.

A kernel that copies rows, and calculates nothing with them, is given them as bytes and words of eight: it is compiled
once, not once for each dtype.
"""

from __future__ import annotations

from typing import Any

from kvemb.backends.intrinsics import copy_1, copy_2, copy_4, copy_8, copy_16, copy_32, copy_64
from kvemb.kernels.compiling import inlined


@inlined
def copy_row(to: Any, to_offset: Any, source: Any, offset: Any, nbytes: Any) -> None:
    """Copy nbytes from byte `offset` of a contiguous array to byte `to_offset` of another one, of any dtype."""
    done = 0
    while done + 64 <= nbytes:
        copy_64(to, to_offset + done, source, offset + done)
        done += 64
    if nbytes & 32:
        copy_32(to, to_offset + done, source, offset + done)
        done += 32
    if nbytes & 16:
        copy_16(to, to_offset + done, source, offset + done)
        done += 16
    if nbytes & 8:
        copy_8(to, to_offset + done, source, offset + done)
        done += 8
    if nbytes & 4:
        copy_4(to, to_offset + done, source, offset + done)
        done += 4
    if nbytes & 2:
        copy_2(to, to_offset + done, source, offset + done)
        done += 2
    if nbytes & 1:
        copy_1(to, to_offset + done, source, offset + done)
