"""Sizes given as text, and the creators."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kvemb.errors import UnsupportedFormat
from kvemb.options import MemoryCreator, RocksDBCreator, format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((4096, 4096), ("4096", 4096), ("1KiB", 1024), ("1 kb", 1000), ("1.5GB", 1_500_000_000), ("2g", 2 << 30)),
        *((" 512 MiB ", 512 << 20), ("0.5TiB", 1 << 39), ("7B", 7), ("3M", 3 << 20), ("1T", 1 << 40), (0, 0)),
    ],
)
def test_sizes_are_read(size, expected):
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GB", "1.5.2GB", "-1MB", "1e9", "1XB", "1 GiB extra", "0x10", "\u0661GB", "nan"])
def test_other_text_is_refused(size):
    with pytest.raises(ValueError, match="memory_budget must be text such as"):
        parse_bytes(size)


@pytest.mark.parametrize("size", [None, 1.5, True, b"1GB", [1]])
def test_other_types_are_refused(size):
    with pytest.raises(TypeError, match="cache must be an int"):
        parse_bytes(size, "cache")


def test_a_budget_holds_the_min_a_store_can_work_with():
    assert parse_budget("4MiB") == 4 << 20
    with pytest.raises(ValueError, match=r"at least 4\.0 MiB, got 4194303"):
        parse_budget((4 << 20) - 1)
    with pytest.raises(ValueError, match=r"at least 4\.0 MiB, got '256', which is in bytes; write '256MiB' for MiB"):
        parse_budget("256")


def test_sizes_are_written():
    sizes = [0, 1023, 1024, 1536, 5 << 20, 3 << 30, 2 << 40]
    assert list(map(format_bytes, sizes)) == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB"]


@pytest.mark.parametrize("creator", [RocksDBCreator(), RocksDBCreator(compression=("none", "lz4"), read_mode="mmap")])
def test_creators_come_back_from_json(creator):
    assert RocksDBCreator.from_json(json.loads(json.dumps(dataclasses.asdict(creator)))) == creator


@pytest.mark.parametrize("data", [{}, {"compression": 3}, {"compression": "gzip"}, {"compression": "none", "more": 1}])
def test_unknown_json_is_refused(data):
    with pytest.raises(UnsupportedFormat, match="cannot be read"):
        RocksDBCreator.from_json(data)


@pytest.mark.parametrize("field", ["block_bytes", "bloom_bits", "write_buffer_bytes", "background_jobs"])
def test_numbers_of_a_creator_are_checked(field):
    with pytest.raises(ValueError, match=f"RocksDBCreator {field} must be at least"):
        RocksDBCreator(**{field: -1})
    for value in (1.5, "4096", True, None):
        with pytest.raises(TypeError, match=f"RocksDBCreator {field} must be an int"):
            RocksDBCreator(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("read_mode", "fast"), ("read_mode", None), ("compaction", "fifo")),
        *(("compression", "gzip"), ("compression", ()), ("compression", ("lz4", "x"))),
    ],
)
def test_names_of_a_creator_are_checked(field, value):
    with pytest.raises(ValueError, match=f"RocksDBCreator {field} must be"):
        RocksDBCreator(**{field: value})


def test_creators_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RocksDBCreator().block_bytes = 1  # type: ignore[misc]
    assert MemoryCreator() == MemoryCreator()
