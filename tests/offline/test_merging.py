"""Streams of rows merged in key order: the same as a dict that takes one stream after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of

from kvemb.offline.merging import merged
from kvemb.rows.block import RowBlock


def pieces(rows: RowBlock, size: int) -> Iterator[RowBlock]:
    return (rows.part(at, min(at + size, len(rows))) for at in range(0, len(rows), size))


@pytest.mark.parametrize("window", [1, 2, 10, 1000])
@pytest.mark.parametrize("streams", [0, 1, 2, 9])
def test_the_last_stream_wins(window, streams):
    chance, expected, given = np.random.default_rng(window + streams), {}, []
    for value in range(streams):
        keys = np.sort(chance.choice(np.arange(-200, 200), int(chance.integers(0, 120)), replace=False))
        given.append(pieces(rows_of(keys, value), int(chance.integers(1, 20))))
        expected |= dict.fromkeys(keys.tolist(), float(value))
    found = list(merged(given, SCHEMA, window))
    assert [key for block in found for key in block.keys.tolist()] == sorted(expected)
    assert {key: value for block in found for key, value in values_of(block).items()} == expected


def test_few_rows_are_held_of_each_stream():
    read = 0

    def counted(rows: RowBlock) -> Iterator[RowBlock]:
        nonlocal read
        for piece in pieces(rows, 5):
            read += len(piece)
            yield piece

    taken = 0
    for block in merged([counted(rows_of(np.arange(1000), value)) for value in range(3)], SCHEMA, 20):
        taken += len(block)
        assert read <= 3 * (taken + 20)
    assert taken == 1000
