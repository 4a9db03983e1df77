"""The parts of a file that a kernel writes: keys between blocks, as short as they may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvemb.backends.table_files.writing import _put_separator
from kvemb.kernels.compiling import kernel


@kernel
def put_separator(out: Any, last: Any, following: Any) -> int:
    return _put_separator(out.ctypes.data, np.uint64(last), np.uint64(following), False) - out.ctypes.data


def test_a_separator_is_from_the_last_key_on_and_below_the_following_one():
    random, out = np.random.default_rng(2), np.zeros(16, np.uint8)
    shortest = 8
    for _ in range(2000):
        bits = np.uint64(random.integers(1, 64))
        last, following = sorted(random.integers(0, 2**63, 2, np.uint64) >> bits)
        if last == following:
            continue
        end = put_separator(out, last, following)
        text = out[1:end].tobytes()
        assert out[0] == len(text) > 0
        assert int(last).to_bytes(8, "big") <= text < int(following).to_bytes(8, "big")
        shortest = min(shortest, len(text))
    assert shortest == 1
