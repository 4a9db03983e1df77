"""The kernels of words: their lengths and bytes in UTF-8, and their hashes. Loaded at first use, as numba is slow.

Kernels here access only their arguments, and release the GIL unless they read objects.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kvemb.kernels.addresses import LINE_BYTES, copy, load_64, narrow_8, prefetch
from kvemb.kernels.compiling import compiled, kernel
from kvemb.kernels.objects import bytes_of, list_item, text_of
from kvemb.kernels.xxh3 import flip_of_4_to_8, of_4_to_8, xxh3

# An object is prefetched so many words before it is read; most take two cache lines.
_AHEAD = 32


@kernel
def hash_words(data: Any, offsets: Any, secret: Any, seed: Any, long_secret: Any, sums: Any, out: Any) -> None:
    """Set out (n,) to the hashes of the words data[offsets[i]:offsets[i + 1]] (kvemb.kernels.xxh3)."""
    at, plain, long = data.ctypes.data, secret.ctypes.data, long_secret.ctypes.data
    flip, end = flip_of_4_to_8(plain, seed), np.int64(offsets[0])
    for i in range(len(out)):
        start, end = end, np.int64(offsets[i + 1])
        if 4 <= end - start <= 8:  # hexadecimal words and short numbers: twice as fast as through xxh3()
            out[i] = np.int64(of_4_to_8(at + start, end - start, flip))
        else:
            out[i] = np.int64(xxh3(at + start, end - start, plain, seed, long, sums))


@partial(kernel, nogil=False)
def gather(values: int, listed: bool, missing: int, begin: int, end: int, offsets: Any, data: Any, present: Any) -> int:
    """Append the words of str and bytes objects, from number begin up to end, to data: offsets (n + 1,) are filled.

    values: the address of a list, if listed, else of pointers to objects. missing: the address of the object that
    stands for a missing word; present (n,) becomes False there. Returns end, or the number of a word for which data has
    no room, or whose object is of another kind. Holds the GIL, so that no other thread can drop an object.
    """
    at, to, is_bytes = np.int64(offsets[begin]), data.ctypes.data, False  # objects are mostly of the kind of the last
    for i in range(begin, end):
        if i + _AHEAD < end:
            ahead = _object_at(values, listed, i + _AHEAD)
            prefetch(ahead)
            prefetch(ahead + LINE_BYTES)
        value = _object_at(values, listed, i)
        if value == 0:
            return i
        if value == missing:
            present[i] = False
        else:
            text, nbytes = bytes_of(value) if is_bytes else text_of(value)
            if text == 0:
                is_bytes = not is_bytes
                text, nbytes = bytes_of(value) if is_bytes else text_of(value)
            if text == 0 or at + nbytes > len(data):
                return i
            copy(to + at, text, nbytes)
            at += nbytes
        offsets[i + 1] = at
    return end


@compiled
def _object_at(values: int, listed: bool, i: int) -> Any:
    return list_item(values, i) if listed else np.int64(load_64(values + 8 * i))


@kernel
def encode(codes: Any, offsets: Any, data: Any) -> int:
    """Write the words in codes (n, width), which NULs may follow, to data, and fill offsets (n + 1,); offsets[0] is 0.

    codes: bytes, or Unicode's code points as uint32, which become UTF-8. data: as many bytes as codes has. Returns the
    number of a word with a code point that UTF-8 lacks, -1 if there is none.
    """
    wrong, at, width = -1, 0, codes.shape[1]
    source, to = codes.ctypes.data, data.ctypes.data
    for i in range(codes.shape[0]):
        count, j = width, 0
        while count > 7 and load_64(source + (i * width + count) * codes.itemsize - 8) == 0:
            count -= 8 // codes.itemsize
        while count > 0 and codes[i, count - 1] == 0:
            count -= 1
        if codes.itemsize == 1:
            copy(to + at, source + i * width, count)
            at, j = at + count, count
        while j < count:
            if j + 8 <= count and narrow_8(source + (i * width + j) * 4, to + at):
                at, j = at + 8, j + 8
                continue
            code = np.uint32(codes[i, j])
            j += 1
            if code < 0x80:
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
                if code >= 0xD800 and code < 0xE000:
                    wrong = i
            else:
                data[at] = 0xF0 | code >> 18
                data[at + 1] = 0x80 | code >> 12 & 0x3F
                data[at + 2] = 0x80 | code >> 6 & 0x3F
                data[at + 3] = 0x80 | code & 0x3F
                at += 4
                if code > 0x10FFFF:
                    wrong = i
        offsets[i + 1] = at
    return wrong


@kernel
def pack(data: Any, offsets: Any, names: Any) -> Any:
    """Write the words data[offsets[i]:offsets[i + 1]] to names (n, name_bytes), which are padded already.

    Returns the number of a word that is no name (it is too long, has a NUL, or begins within a character), -1 if there
    is none; then whether all bytes are ASCII.
    """
    only_ascii = True
    for i in range(len(names)):
        start = np.int64(offsets[i])
        count = np.int64(offsets[i + 1]) - start
        if count > names.shape[1] or (count > 0 and data[start] & 0xC0 == 0x80):
            return i, only_ascii
        for j in range(count):
            byte = data[start + j]
            if byte == 0:
                return i, only_ascii
            only_ascii &= byte < 0x80
            names[i, j] = byte
    return -1, only_ascii
