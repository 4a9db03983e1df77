"""Values split into pieces are the same after joining, whatever they contain."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.cluster.pieces import ALIGN, MAX_BYTES, PIECE_BYTES, SplitValue, joined, pieces_of

ODD = [
    np.arange(6).reshape(2, 3),
    np.ones(3, np.bool_),
    np.zeros((0, 4)),
    np.arange(5, dtype=np.float16),
    np.arange(4.0),
]


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("arrays", [[], [np.zeros(0)], [np.arange(10.0)], ODD], ids=["none", "empty", "one", "odd"])
def test_a_value_is_the_same_after_it_was_in_pieces(count, arrays):
    value = [(array, None, "text") for array in arrays]
    split = SplitValue(value)
    pieces = split.pieces(count)
    assert len(pieces) == 1 + count
    assert all(isinstance(piece, bytes) for piece in pieces)
    assert max(map(len, pieces[1:])) <= -(-split.nbytes // count)
    again = joined(list(pieces))
    assert len(again) == len(value)
    for (array, *rest), (expected, *others) in zip(again, value, strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        assert array.ctypes.data % ALIGN == 0 or not array.size
        assert array.flags.writeable
        assert rest == others


def test_a_value_without_arrays_is_its_description():
    pieces = SplitValue({"name": [1, None]}).pieces(0)
    assert len(pieces) == 1
    assert joined(pieces) == {"name": [1, None]}


def test_small_and_very_large_answers_come_whole():
    assert [pieces_of(nbytes) for nbytes in (0, PIECE_BYTES, MAX_BYTES + 1)] == [0, 0, 0]
    assert pieces_of(PIECE_BYTES + 1) == 2
    assert -(-MAX_BYTES // pieces_of(MAX_BYTES)) <= PIECE_BYTES
