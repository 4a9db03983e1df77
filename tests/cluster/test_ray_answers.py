"""Answers in pieces: whole again afterwards, whatever is in them."""

from __future__ import annotations

import numpy as np
import pytest

from kvemb.cluster.ray_answers import MOST_IN_PIECES, PIECE_BYTES, in_pieces, joined, pieces_of


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize(
    "arrays",
    [[], [np.zeros(0)], [np.arange(10.0)], [np.arange(6).reshape(2, 3), np.ones(3, np.bool_), np.zeros((0, 4))]],
    ids=str,
)
def test_a_result_is_the_same_after_it_was_in_pieces(count, arrays):
    result = [(array, None, "text") for array in arrays]
    pieces = in_pieces(result, count)
    assert len(pieces) == 1 + count
    assert all(isinstance(piece, bytes) for piece in pieces)
    again = joined(list(pieces))
    assert len(again) == len(result)
    for (array, *rest), (expected, *others) in zip(again, result, strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        assert rest == others


def test_small_and_very_large_answers_come_whole():
    assert [pieces_of(nbytes) for nbytes in (0, PIECE_BYTES, MOST_IN_PIECES + 1)] == [0, 0, 0]
    assert pieces_of(PIECE_BYTES + 1) == 2
    assert -(-MOST_IN_PIECES // pieces_of(MOST_IN_PIECES)) <= PIECE_BYTES
