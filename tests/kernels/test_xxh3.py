"""XXH3 against the published library and against RocksDB, which stores it behind each block, for many lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from schemas import schema_of
from table_readers import TINY, opened, rows_at

from kvemb.backends.table_files.table_file import _checksum
from kvemb.kernels.xxh3 import MIN_BYTES, SECRET, secret_of


def test_a_change_of_any_bit_changes_the_sum():
    for nbytes in (MIN_BYTES, 100, 128, 129, 200, 240, 241, 1024, 1025, 2100):
        data = (np.arange(nbytes) % 251).astype(np.uint8)
        sums = set()
        for at in [*range(0, nbytes, 7), nbytes - 1]:
            data[at] ^= 1
            sums.add(_checksum(data.ctypes.data, nbytes, SECRET.ctypes.data, np.empty(8, np.uint64)))
            data[at] ^= 1
        assert len(sums) == len({*range(0, nbytes, 7), nbytes - 1})


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_it_is_what_rocksdb_stores_behind_blocks_of_all_lengths(tmp_path: Path, rows: int) -> None:
    """Records of 25 to 560 bytes, a block each; a wrong sum would be damage."""
    database = opened(tmp_path / "rows")
    for words in range(1, 68):
        schema = schema_of("int64", words, ())
        store = database.create(f"{words}", schema, TINY)
        store.write(rows_at(np.arange(rows), 1, schema))
        got, found = store.read(np.arange(rows))
        assert found.all()
        np.testing.assert_array_equal(got.words, rows_at(np.arange(rows), 1, schema).words)
        assert store._tables._version.readable
        database.drop(f"{words}")  # RocksDB writes the options of all families whenever one is made
    database.close()


def test_the_secret_of_seed_0_is_the_default():
    np.testing.assert_array_equal(secret_of(0), SECRET)
    assert not np.array_equal(secret_of(2**64 - 1), SECRET)
