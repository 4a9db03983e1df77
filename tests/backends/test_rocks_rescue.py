"""Rows saved of a column family that cannot be read everywhere: every row outside the gaps, and gaps as they are."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import pytest
from blocks import SCHEMA, rows_of, values_of

from kvemb.backends.rocks_rescue import rescue
from kvemb.contracts import Gap
from kvemb.rows.codec import encode_keys, encode_records, order_keys

KEYS = list(range(0, 1000, 10))
# Where the keys of SCHEMA, which are signed, begin on disk.
ZERO = 1 << 63


class Family:
    """A column family of KEYS, of which the blocks that hold some of them cannot be read."""

    def __init__(self, damaged: set[int]) -> None:
        rows = rows_of(KEYS)
        rows.values[:, 0] = KEYS
        assert order_keys(rows.keys, SCHEMA).tolist() == [ZERO + key for key in KEYS]
        self._pairs = list(zip(encode_keys(rows.keys, SCHEMA), encode_records(rows), strict=True))
        self._damaged = damaged

    def items(self, from_key: bytes) -> Any:
        """The pairs up to the first that cannot be read, which looks like the end."""
        for at in range(self._at(from_key), len(KEYS)):
            if KEYS[at] in self._damaged:
                return
            yield self._pairs[at]

    def iter(self) -> Any:
        return Cursor(self)

    def _at(self, key: bytes) -> int:
        return bisect_left(self._pairs, (key,))

    def fails_at(self, key: bytes) -> bool:
        at = self._at(key)
        return at < len(KEYS) and KEYS[at] in self._damaged


class Cursor:
    def __init__(self, family: Family) -> None:
        self._family = family

    def seek(self, key: bytes) -> None:
        self._failed = self._family.fails_at(key)

    def status(self) -> None:
        if self._failed:
            raise Exception("Corruption: block checksum mismatch")


def saved(damaged: set[int], batch_rows: int = 7) -> tuple[list[int], list[tuple[int, int]]]:
    """The keys that are saved, and the gaps, in keys."""
    keys, gaps = [], []
    for piece in rescue(Family(damaged), SCHEMA, batch_rows):
        if isinstance(piece, Gap):
            gaps.append((piece.first - ZERO, piece.last - ZERO))
        else:
            assert len(piece) <= batch_rows
            assert values_of(piece) == {key: float(key) for key in piece.keys.tolist()}
            keys += piece.keys.tolist()
    return keys, gaps


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 1000])
def test_all_rows_of_a_sound_family_come_and_no_gap(batch_rows):
    assert saved(set(), batch_rows) == (KEYS, [])


@pytest.mark.parametrize(
    ("damaged", "gaps"),
    [
        ({500, 510, 520}, [(491, 520)]),
        ({0, 10}, [(-ZERO, 10)]),
        ({980, 990}, [(971, 990)]),
        ({100, 700}, [(91, 100), (691, 700)]),
        (set(KEYS), [(-ZERO, 990)]),
    ],
    ids=["in the middle", "at the beginning", "at the end", "two that are far apart", "everywhere"],
)
def test_rows_outside_of_gaps_are_saved_and_gaps_are_as_wide_as_what_cannot_be_read(damaged, gaps):
    assert saved(damaged) == ([key for key in KEYS if key not in damaged], gaps)
