"""Records of a MANIFEST, beside the bytes that RocksDB writes itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from schemas import schema_of

from kvemb.backends.rocks_log import BLOCK_BYTES, framed, number, numbers, records, sized
from kvemb.options import RocksDBCreator
from tests.backends.test_cold_store import database


def log_of(items: list[bytes]) -> bytes:
    log = b""
    for each in items:
        log += framed(each, len(log))
    return log


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> bytes:
    """A MANIFEST of RocksDB that is longer than two blocks."""
    folder: Path = tmp_path_factory.mktemp("log")
    opened = database(folder / "rows")
    for at in range(400):
        opened.create(f"{at}" + "n" * 200, schema_of(dim=1), RocksDBCreator())
    opened.checkpoint(folder / "copy")
    opened.close()
    return next((folder / "copy").glob("MANIFEST-*")).read_bytes()


def test_the_bytes_are_those_of_rocksdb(manifest):
    assert len(manifest) > 2 * BLOCK_BYTES
    assert log_of(list(records(manifest))) == manifest


@pytest.mark.parametrize("left", [*range(9), 40])
def test_a_record_begins_wherever_the_log_ends(left):
    items = [bytes(BLOCK_BYTES - 7 - left), b"", b"a" * 20, np.arange(30_000, dtype=np.int32).tobytes(), b"b"]
    assert list(records(log_of(items))) == items


def test_each_damaged_byte_is_found(manifest):
    chance = np.random.default_rng(0)
    for at in (*range(12), *chance.integers(0, len(manifest), 30).tolist()):
        with pytest.raises(ValueError, match=r"its record at byte [0-9,]+ is "):
            list(records(manifest[:at] + bytes([manifest[at] ^ 1]) + manifest[at + 1 :]))
    for length in (3, len(manifest) - 1):
        with pytest.raises(ValueError, match="cut off"):
            list(records(manifest[:length]))


def test_numbers_are_varints():
    values = [0, 1, 127, 128, 300, 2**32, 2**64 - 1]
    encoded, at, read = numbers(*values), 0, []
    while at < len(encoded):
        value, at = number(encoded, at)
        read.append(value)
    assert read == values
    assert sized(b"\x02abc", 0) == (b"ab", 3)
    with pytest.raises(ValueError, match="cut off"):
        sized(b"\x05abc", 0)
