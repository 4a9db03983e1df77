"""RocksDB's list of files, and what is not understood of it."""

from __future__ import annotations

import pytest

from kvemb.backends.table_files.listing import Listed, runs_of
from kvemb.backends.table_files.table_file import Unreadable

A, B, C, D = (f"{key:016X}" for key in (5, 9, 10, 2**64 - 1))


def file(number: int, first: str, last: str, kinds: str = "11") -> str:
    return f" {number}:4096[1 .. 9]['{first}' seq:1, type:{kinds[0]} .. '{last}' seq:9, type:{kinds[1]}](0)"


def test_files_of_level_0_are_runs_and_a_level_below_is_one():
    listing = "\n".join(
        [
            *("--- level 0 --- version# 7 ---", file(12, A, D), file(7, A, B, "10"), "--- level 1 --- version# 7 ---"),
            *("--- level 2 --- version# 7 ---", file(3, A, B), file(4, C, D), "", ""),
        ]
    )
    most = 2**64 - 1
    assert runs_of(listing) == [
        [Listed(12, 4096, 5, most)],
        [Listed(7, 4096, 5, 9)],
        [Listed(3, 4096, 5, 9), Listed(4, 4096, 10, most)],
    ]
    assert runs_of("") == []


@pytest.mark.parametrize(
    "lines",
    [
        ["--- level 1 --- version# 7 ---", file(3, A, C), file(4, C, D)],
        ["--- level 1 --- version# 7 ---", file(3, C, D), file(4, A, B)],
        ["--- level 0 --- version# 7 ---", file(3, B, A)],
        ["--- level 0 --- version# 7 ---", file(3, "", "F" * 18, "FF")],
        ["--- level 0 --- version# 7 ---", file(3, A, B).replace("type:1", "type:15")],
        ["--- level 0 --- version# 7 ---", file(3, A, B).replace("type:1", "type:2")],
        ["--- level 0 --- version# 7 ---", file(3, A, "F" * 18)],
        ["--- level 0 --- version# 7 ---", file(3, A, B), "--- blob files --- version# 7 ---"],
        ["--- level 0 --- version# 7 ---", file(3, A, B) + " blob_file:8"],
        [file(3, A, B)],
    ],
)
def test_anything_else_is_left_to_rocksdb(lines):
    with pytest.raises(Unreadable):
        runs_of("\n".join(lines))
