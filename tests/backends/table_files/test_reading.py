"""The kernel on files that no database has open: parts of a batch, keys to pass by, and asking for pages first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_readers import SCHEMA, listing_of, opened, read, reader_of, rows_at

from kvemb.backends.table_files.reader import TableReader
from kvemb.backends.table_files.reading import FOUND, UNKNOWN
from kvemb.options import RocksDBCreator

KEYS = np.arange(0, 30_000, 3)
CREATOR = RocksDBCreator()


@pytest.fixture
def reader(tmp_path: Path) -> TableReader:
    """Two runs of three files each, of which the newer one has every second key."""
    database = opened(tmp_path / "rows")
    database.create("rows", SCHEMA, CREATOR)
    levels: list[Any] = [[]]
    for moment, keys in ((2, KEYS[::2]), (1, KEYS)):
        files = []
        for part, some in enumerate(np.array_split(keys, 3)):
            made = database.sorted_file(tmp_path / f"{10 * moment + part:06d}.sst", SCHEMA, CREATOR)
            made.append(rows_at(some, moment))
            made.finish()
            files.append((made.path, made.first.hex().upper(), made.last.hex().upper()))
        levels.append(files)
    database.close()
    return reader_of(tmp_path, listing_of(*levels))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("parts", [1, 3, 7])
def test_rows_are_those_of_the_newest_run(reader, asks, parts):
    reader._asks = asks
    random = np.random.default_rng(parts)
    keys = random.integers(-100, 30_100, 5000)

    def spread(work: Any, count: int) -> None:
        for part in range(parts):
            work(count * part // parts, count * (part + 1) // parts)

    rows, states = read(reader, keys, spread)
    exists = np.isin(keys, KEYS)
    np.testing.assert_array_equal(states, np.where(exists, FOUND, UNKNOWN))
    found, moments = rows.select(exists), np.where(keys[exists] % 6 == 0, 2, 1)
    np.testing.assert_array_equal(found.scores, moments)
    np.testing.assert_array_equal(found.words, rows_at(found.keys, 0).words + moments.astype(np.uint64)[:, None])


def test_no_keys_and_one_key(reader):
    def spread(work: Any, count: int) -> None:
        work(0, count)

    rows, states = read(reader, np.empty(0, np.int64), spread)
    assert (len(rows), len(states)) == (0, 0)
    rows, states = read(reader, np.array([6]), spread)
    assert (states.tolist(), rows.scores.tolist()) == ([FOUND], [2])
