"""What counts as a number, whether a dtype holds it, and that JSON keeps its bits."""

from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest

from kvemb.checks.numeric import as_int, as_number, fits, from_plain, is_number, to_plain


@pytest.mark.parametrize("value", [1, 1.5, np.int8(1), np.float16(1.5), np.uint64(2**64 - 1), math.inf])
def test_real_numbers_are_numbers(value):
    assert is_number(value)
    assert as_number(value, "x") == value
    assert type(as_number(value, "x")) in (int, float)


@pytest.mark.parametrize("value", [True, np.True_, 1j, "1", None, np.array([1])])
def test_all_else_is_refused_by_name(value):
    assert not is_number(value)
    with pytest.raises(TypeError, match=r"^x must be a real number"):
        as_number(value, "x")


def test_integers_have_bounds():
    assert as_int(np.int64(3), "n", 0, 3) == 3
    with pytest.raises(ValueError, match=r"^n must be at least 0, got -1"):
        as_int(-1, "n", 0)
    with pytest.raises(ValueError, match=r"^n must be at most 3, got 4"):
        as_int(4, "n", 0, 3)
    for value in (1.0, True, "1", None):
        with pytest.raises(TypeError, match=r"^n must be an int"):
            as_int(value, "n", 0)


@pytest.mark.parametrize(
    ("value", "dtype", "holds"),
    [
        *(
            (127, "int8", True),
            (128, "int8", False),
            (1.0, "int8", True),
            (1.5, "int8", False),
            (math.nan, "int8", False),
        ),
        *((math.inf, "int64", False), (2**63 - 1, "int64", True), (2**63, "int64", False)),
        *(
            (65504.0, "float16", True),
            (70000.0, "float16", False),
            (math.inf, "float16", True),
            (1e39, "float32", False),
        ),
        (10**400, "float64", False),
    ],
)
def test_a_dtype_holds_what_it_can(value, dtype, holds):
    assert fits(value, np.dtype(dtype)) is holds


@pytest.mark.parametrize("bits", [0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 1])
def test_json_keeps_every_bit(bits):
    value = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    back = from_plain(json.loads(json.dumps(to_plain((value, 3)), allow_nan=False)))
    assert struct.pack(">d", back[0]) == bits.to_bytes(8, "big")
    assert back[1] == 3
