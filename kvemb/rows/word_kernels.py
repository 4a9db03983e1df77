"""The kernels of words: their lengths and bytes in UTF-8, and their hashes. Loaded at first use, as numba is slow.

Kernels here release the GIL and access only their arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.kernels.compiling import kernel
from kvemb.kernels.xxh3 import xxh3


@kernel
def hash_words(
    data: Any, offsets: Any, gap: Any, secret: Any, seed: Any, long_secret: Any, sums: Any, out: Any
) -> None:
    """Set out (n,) to the hashes of the words data[offsets[i]:offsets[i + 1] - gap] (kvemb.kernels.xxh3)."""
    at, plain, long = data.ctypes.data, secret.ctypes.data, long_secret.ctypes.data
    for i in range(len(out)):
        start = np.int64(offsets[i])
        out[i] = np.int64(xxh3(at + start, np.int64(offsets[i + 1]) - gap - start, plain, seed, long, sums))


@kernel
def divide(data: Any, offsets: Any) -> int:
    """Fill offsets (n + 1,) of n words in data, each behind a NUL but the first; offsets[0] is 0.

    Returns how many NULs data has; from n on, offsets are not those of all words.
    """
    words, found = len(offsets) - 1, 0
    for i in range(len(data)):
        if data[i] == 0:
            found += 1
            if found < words:
                offsets[found] = i + 1
    offsets[words] = len(data) + 1 if words else 0
    return found


@kernel
def measure(codes: Any, offsets: Any) -> int:
    """Fill offsets (n + 1,) of the words in codes (n, width), which NULs may follow; offsets[0] is 0.

    codes: bytes, or Unicode's code points as uint32, which take 1 to 4 bytes each. Returns the number of a word with a
    code point that UTF-8 lacks, -1 if there is none.
    """
    wrong = -1
    for i in range(codes.shape[0]):
        count = codes.shape[1]
        while count > 0 and codes[i, count - 1] == 0:
            count -= 1
        nbytes = count
        if codes.itemsize > 1:
            for j in range(count):
                code = codes[i, j]
                nbytes += (code >= 0x80) + (code >= 0x800) + (code >= 0x10000)
                if (code >= 0xD800 and code < 0xE000) or code > 0x10FFFF:
                    wrong = i
        offsets[i + 1] = offsets[i] + nbytes
    return wrong


@kernel
def encode(codes: Any, offsets: Any, data: Any) -> None:
    """Write the words in codes to data, in UTF-8. offsets: as measure() filled them."""
    for i in range(codes.shape[0]):
        at, j = offsets[i], 0
        while at < offsets[i + 1]:
            code = np.uint32(codes[i, j])
            j += 1
            if codes.itemsize == 1 or code < 0x80:
                data[at] = code
                at += 1
            elif code < 0x800:
                data[at] = 0xC0 | code >> 6
                data[at + 1] = 0x80 | code & 0x3F
                at += 2
            elif code < 0x10000:
                data[at] = 0xE0 | code >> 12
                data[at + 1] = 0x80 | code >> 6 & 0x3F
                data[at + 2] = 0x80 | code & 0x3F
                at += 3
            else:
                data[at] = 0xF0 | code >> 18
                data[at + 1] = 0x80 | code >> 12 & 0x3F
                data[at + 2] = 0x80 | code >> 6 & 0x3F
                data[at + 3] = 0x80 | code & 0x3F
                at += 4


@kernel
def pack(data: Any, offsets: Any, gap: Any, names: Any) -> Any:
    """Write the words data[offsets[i]:offsets[i + 1] - gap] to names (n, name_bytes), which are padded already.

    Returns the number of a word that is no name (it is too long, has a NUL, or begins within a character), -1 if there
    is none; then whether all bytes are ASCII.
    """
    only_ascii = True
    for i in range(len(names)):
        start = np.int64(offsets[i])
        count = np.int64(offsets[i + 1]) - gap - start
        if count > names.shape[1] or (count > 0 and data[start] & 0xC0 == 0x80):
            return i, only_ascii
        for j in range(count):
            byte = data[start + j]
            if byte == 0:
                return i, only_ascii
            only_ascii &= byte < 0x80
            names[i, j] = byte
    return -1, only_ascii
