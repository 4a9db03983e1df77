"""What kernels that hold the GIL do with objects: no exception and no reference is left behind."""

from __future__ import annotations

import ctypes
import sys
from functools import partial
from typing import Any

import numpy as np

from kvemb.kernels import objects
from kvemb.kernels.compiling import kernel


@partial(kernel, nogil=False)
def _read(values: int, at: int, found: Any) -> None:
    item = objects.list_item(values, at)
    found[0] = item
    if item != 0:
        found[1], found[2] = objects.text_of(item)
        found[3], found[4] = objects.bytes_of(item)


def test_bytes_of_str_and_bytes_are_read_and_all_else_has_no_address():
    values = ["".join(["a", "bc"]), "é", b"a\0b", "\ud800", None, 5, np.str_("東"), np.bytes_(b"x")]
    texts = [b"abc", "é".encode(), None, None, None, None, "東".encode(), None]
    raw = [None, None, b"a\0b", None, None, None, None, b"x"]
    own = [values[0], *values[6:]]  # others are used elsewhere, too
    counts = [sys.getrefcount(each) for each in own]
    for at, value in enumerate(values):
        found = np.zeros(5, np.int64)
        _read(id(values), at, found)  # raises SystemError if it leaves an exception
        assert found[0] == id(value)
        read = [ctypes.string_at(int(found[i]), int(found[i + 1])) if found[i] else None for i in (1, 3)]
        assert read == [texts[at], raw[at]]
        del value
    assert [sys.getrefcount(each) for each in own] == counts


def test_an_item_behind_the_end_of_a_list_has_no_address():
    found = np.ones(5, np.int64)
    values: list[object] = []
    _read(id(values), 0, found)
    assert found[0] == 0
