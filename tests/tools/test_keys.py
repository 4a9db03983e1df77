"""Keys in files: integers in decimal digits alone, and files of them."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.tools.failures import BadInput
from kvemb.tools.keys import integers, read_keys

pa = pytest.importorskip("pyarrow")


def test_words_are_integers_in_decimal_digits_or_refused():
    place = "line {}".format
    words = pa.array([" 7", "-12", "007", "18446744073709551615"], pa.large_string())
    assert integers(words[:3], np.dtype(np.int64), place, "in").tolist() == [7, -12, 7]
    assert integers(words[3:], np.dtype(np.uint64), place, "in").tolist() == [2**64 - 1]
    with pytest.raises(BadInput, match="in, line 3: the key 18446744073709551615 does not fit int64"):
        integers(words, np.dtype(np.int64), place, "in")
    for wrong in ("", "1_2", "0x10", "1.0", "+4", "cat", "٣"):
        with pytest.raises(BadInput, match=r"in, line 1: the key .* is not an integer"):
            integers(pa.array(["5", wrong], pa.large_string()), np.dtype(np.int64), place, "in")


def test_a_file_of_keys_has_the_right_shape(tmp_path):
    np.save(tmp_path / "in.npy", np.ones((2, 2), np.int64))
    with pytest.raises(BadInput, match=r"in\.npy must hold integers of the shape \(n,\)"):
        read_keys(tmp_path / "in.npy")
    (tmp_path / "in.txt").write_bytes(b"a b\r\nc")
    assert read_keys(tmp_path / "in.txt").to_pylist() == ["a b", "c"]
