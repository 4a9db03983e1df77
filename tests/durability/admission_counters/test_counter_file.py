"""Counter files: what is written comes back, and every damage is found."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from damage import damages

from kvemb.durability.admission_counters.counter_file import (
    CounterFile,
    CountersSize,
    read_counters,
    sizes_of,
    write_counters,
)
from kvemb.errors import Corruption, UnsupportedFormat
from kvemb.operations.admission_counters import ROWS, Counters


def counters(columns: int, filled: float = 0.1, counted: int = 7) -> Counters:
    chance = np.random.default_rng(columns)
    values = chance.integers(0, 256, (ROWS, columns)) * (chance.random((ROWS, columns)) < filled)
    return Counters(values.astype(np.uint8), counted)


@pytest.mark.parametrize("columns", [256, 1 << 18, 300_001])
@pytest.mark.parametrize("filled", [0.0, 0.01, 1.0])
def test_counters_come_back(tmp_path, columns, filled):
    given = counters(columns, filled)
    entry = write_counters(tmp_path / "000001-000.counts", given)
    assert (entry.file, entry.counters, entry.counted) == ("000001-000.counts", ROWS * columns, 7)
    back = read_counters(tmp_path, entry)
    np.testing.assert_array_equal(back.values, given.values)
    assert back.counted == 7
    # However random the bytes, no file is much larger than the counters.
    assert (tmp_path / entry.file).stat().st_size < ROWS * columns * max(0.02, 3 * filled) + 1000


def test_every_damage_is_found_and_names_the_file(tmp_path):
    path = tmp_path / "000001-000.counts"
    entry = write_counters(path, counters(300_001))
    for _ in damages(path):
        with pytest.raises((Corruption, UnsupportedFormat), match=path.name):
            read_counters(tmp_path, entry)
    for number in (ROWS * 300_000, ROWS * 300_002, ROWS * 2**40):
        with pytest.raises(Corruption, match=path.name):
            read_counters(tmp_path, replace(entry, counters=number))
    path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(Corruption, match="does not end after its last frame"):
        read_counters(tmp_path, entry)


@pytest.mark.parametrize("payload", [b"no zlib", zlib.compress(bytes(1 << 24)), zlib.compress(bytes(1024)) + b"more"])
def test_a_payload_that_does_not_inflate_to_the_counters_is_damage(tmp_path, payload):
    frame = struct.pack("<I", len(payload)) + payload
    path = tmp_path / "000001-000.counts"
    path.write_bytes(b"kvembcount\x00\x01" + frame + struct.pack("<I", zlib.crc32(frame)))
    with pytest.raises(Corruption, match="has a frame"):
        read_counters(tmp_path, CounterFile(path.name, 1024, 0))


def test_another_version_is_refused(tmp_path):
    path = tmp_path / "000001-000.counts"
    entry = write_counters(path, counters(256))
    data = bytearray(path.read_bytes())
    data[11] = 2
    path.write_bytes(data)
    with pytest.raises(UnsupportedFormat, match="format 2, this kvemb reads format 1"):
        read_counters(tmp_path, entry)


def test_sizes_are_those_of_the_manifest_and_of_the_file():
    counted = {"users": CounterFile("000001-000.counts", 4096, 7)}
    found = sizes_of(counted, {"sightings/000001-000.counts": 90, "rows/CURRENT": 16})
    assert found == {"users": CountersSize(counted=7, counters=4096, bytes=90)}
    assert sizes_of({}, {}) == {}


def test_sizes_of_two_shards_are_added():
    assert CountersSize(7, 4096, 90) + CountersSize(2, 4096, 10) == CountersSize(9, 8192, 100)
