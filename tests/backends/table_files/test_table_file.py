"""Files of another kind are left to RocksDB; damaged ones are named, whichever byte is damaged."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from table_readers import SCHEMA, TINY, listing_of, opened, read, reader_of, removals_of, rows_at, whole

from kvemb.backends.table_files.reading import ASK, FOUND, UNKNOWN
from kvemb.backends.table_files.table_file import FOOTER_BYTES, TableFile, Unreadable
from kvemb.errors import Corruption
from kvemb.rows.block import RowBlock

KEYS = np.arange(1, 160, 2)
BOUNDS = f"{(1 << 63) + 1:016X}", f"{(1 << 63) + 159:016X}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A table file with rows of odd keys."""
    database = opened(tmp_path / "rows")
    database.create("rows", SCHEMA, TINY)
    made = database.sorted_file(tmp_path / "000007.sst", SCHEMA, TINY)
    made.append(rows_at(KEYS, 3))
    made.finish()
    database.close()
    return tmp_path / "000007.sst"


def reads(file: Path) -> bool:
    """Whether rows are read, all of them right, and not left to RocksDB."""
    reader = reader_of(file.parent, listing_of([(file, *BOUNDS)]))
    rows, states = RowBlock(SCHEMA, 161), np.full(161, UNKNOWN, np.uint8)
    rows.keys[:] = np.arange(161)
    if not reader(rows, states, whole):
        return False
    if (states == ASK).any():
        return False
    np.testing.assert_array_equal(states, np.where(np.arange(161) % 2 == 1, FOUND, UNKNOWN))
    found, expected = rows.select(states == FOUND), rows_at(KEYS, 3)
    for column in ("keys", "scores", "steps", "words"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))
    return True


def test_its_rows_are_read(file):
    assert reads(file)


def every_byte(file: Path, step: int, start: int = 0) -> tuple[int, int, int]:
    """Flip a bit of every step-th byte, one at a time; return how many were named, left to RocksDB, and harmless."""
    data, named, left, harmless = bytearray(file.read_bytes()), 0, 0, 0
    for at in range(start, len(data), step):
        data[at] ^= 1 << at % 8
        file.unlink()
        file.write_bytes(data)
        data[at] ^= 1 << at % 8
        try:
            if reads(file):
                harmless += 1
            else:
                left += 1
        except Corruption as error:
            named += str(file) in str(error)
    return named, left, harmless


def test_a_flipped_bit_is_named_and_no_row_is_wrong(file):
    named, _, harmless = every_byte(file, 61)
    assert named > 20 * harmless


@pytest.mark.slow
def test_a_flipped_bit_of_any_byte_is_named_and_no_row_is_wrong(file):
    nbytes = file.stat().st_size
    named, left, harmless = every_byte(file, 1)
    # The end of the file has zeros that nobody reads; the kind of compression of parts, and versions, are RocksDB's.
    assert named + left + harmless == nbytes
    assert harmless < FOOTER_BYTES
    assert left < 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_bytes_at_random_never_end_the_process(file, seed):
    random, data = np.random.default_rng(seed), bytearray(file.read_bytes())
    for _ in range(300):
        changed = bytearray(data)
        for at in random.integers(0, len(data), random.integers(1, 40)):
            changed[at] = random.integers(256)
        file.unlink()
        file.write_bytes(changed)
        try:
            reads(file)
        except (Corruption, Unreadable):
            continue


def resealed(file: Path, change: Callable[[bytearray, int, int], None]) -> None:
    """Change the file's index, and give it the right checksum."""
    from kvemb.backends.rocks_log import number
    from kvemb.backends.table_files.table_file import _checksum
    from kvemb.kernels.xxh3 import SECRET

    data, at = bytearray(file.read_bytes()), 1
    parts, footer = [], bytes(data[-FOOTER_BYTES:])
    for _ in range(4):
        part, at = number(footer, at)
        parts.append(part)
    offset, nbytes = parts[2:]
    change(data, offset, nbytes)
    index = np.frombuffer(bytes(data[offset : offset + nbytes]), np.uint8)
    stored = _checksum(index.ctypes.data, nbytes, SECRET.ctypes.data, np.empty(8, np.uint64))
    struct.pack_into("<I", data, offset + nbytes + 1, stored)
    file.unlink()
    file.write_bytes(data)


def test_an_index_that_names_no_block_is_named(file):
    def change(data: bytearray, offset: int, nbytes: int) -> None:
        for at in range(offset, offset + nbytes // 2):
            if data[at : at + 2] == b"\x00\x08" or data[at : at + 2] == b"\x00\x07":
                end = at + 2 + data[at + 1]
                data[end : end + 2] = b"\xff\x7f"

    resealed(file, change)
    with pytest.raises(Corruption, match="'rows': its index names a block that is not in the file"):
        reads(file)


def test_restart_points_outside_of_the_index_are_named(file):
    def change(data: bytearray, offset: int, nbytes: int) -> None:
        (count,) = struct.unpack_from("<I", data, offset + nbytes - 4)
        for at in range(count):
            struct.pack_into("<I", data, offset + nbytes - 8 - 4 * at, 0xFFFFFFF0)

    resealed(file, change)
    with pytest.raises(Corruption, match="its index names a block that is not in the file"):
        reads(file)


@pytest.mark.parametrize("nbytes", [0, 10, FOOTER_BYTES + 1, 2000])
def test_a_file_of_another_size_is_named(file, nbytes):
    listing = listing_of([(file, *BOUNDS)])
    file.write_bytes(file.read_bytes()[:nbytes])
    with pytest.raises(Corruption, match=f"it has {nbytes:,} bytes and should have"):
        read(reader_of(file.parent, listing), KEYS, whole)


def test_a_file_of_another_version_is_left_to_rocksdb(file):
    data = bytearray(file.read_bytes())
    data[-12] = 6
    file.write_bytes(data)
    assert not reads(file)
    with pytest.raises(Unreadable, match="format version 6"):
        TableFile(file, len(data))


def test_removals_hide_older_rows_and_newer_files_come_first(tmp_path, file):
    database = opened(tmp_path / "others")
    database.create("rows", SCHEMA, TINY)
    newer = database.sorted_file(tmp_path / "000009.sst", SCHEMA, TINY)
    newer.append(RowBlock.joined([rows_at([1, 3], 8), removals_of([5, 7])], SCHEMA))
    newer.finish()
    database.close()
    bounds = f"{(1 << 63) + 1:016X}", f"{(1 << 63) + 7:016X}"
    reader = reader_of(tmp_path, listing_of([(newer.path, *bounds)], [(file, *BOUNDS)]))
    rows, states = read(reader, np.array([9, 1, 5, 3, 7, 2]), whole)
    assert states.tolist() == [FOUND, FOUND, 2, FOUND, 2, UNKNOWN]
    assert rows.scores[[0, 1, 3]].tolist() == [3, 8, 8]
