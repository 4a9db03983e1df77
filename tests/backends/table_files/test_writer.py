"""Files that kernels write are read by RocksDB, which ingests, scans and merges them, and by kernels: the same rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from schemas import schema_of
from table_readers import opened, read_by_rocksdb, reads_by_kernels, rows_at

from kvemb.backends.table_files.writer import TableWriter, probes_of
from kvemb.errors import ColdStoreError
from kvemb.options import RocksDBCreator
from kvemb.rows.block import REMOVED, RowBlock

LIMIT = 2**63 - 1


def check(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    schema = schema_of(dim=int(random.choice([1, 3, 17, 64, 2500])), widths=())
    creator = RocksDBCreator(
        block_bytes=int(random.choice([512, 2048, 65536])), bloom_bits=int(random.choice([0, 5, 10, 20]))
    )
    database = opened(folder / str(seed))
    store = database.create("rows", schema, creator)
    count = int(random.choice([1, 2, 17, 500, 6000 if schema.dim < 100 else 900]))
    limit = int(random.choice([count, 2**20, LIMIT]))
    rows = rows_at(np.unique(random.integers(-limit - 1, limit, count)), 7, schema)
    gone = random.random(len(rows)) < random.choice([0, 0.2, 1])
    rows.flags[gone] |= REMOVED
    file = database.sorted_file(folder / f"{seed}.sst", schema, creator)
    assert isinstance(file, TableWriter)
    bounds = [0, *np.sort(random.integers(0, len(rows) + 1, 3)).tolist(), len(rows)]
    for begin, end in pairwise(bounds):
        file.append(rows.part(begin, end))
    file.finish()
    database.ingest("rows", file.path)
    asked = random.permutation(np.concatenate([rows.keys, random.integers(-LIMIT, LIMIT, 200)]))
    expected = rows_at(asked[np.isin(asked, rows.keys[~gone])], 7, schema)
    for _ in range(2):  # as written, and merged
        for found, exists in (store.read(asked), read_by_rocksdb(store, asked)):
            assert np.count_nonzero(exists) == len(expected)
            for column in ("keys", "scores", "steps", "words"):
                np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))
            assert not found.flags.any()
        assert reads_by_kernels(store)
        assert RowBlock.joined(list(store.scan(100)), schema).keys.tolist() == rows.keys[~gone].tolist()
        store.compact(lambda done, total: None)
    database.close()


@pytest.mark.parametrize("seed", range(4))
def test_rows_come_back(tmp_path, seed):
    check(tmp_path, seed)


@pytest.mark.slow
def test_rows_of_many_files_come_back(tmp_path):
    for seed in range(100, 200):
        check(tmp_path, seed)


def test_a_file_that_exists_is_not_overwritten(tmp_path):
    (tmp_path / "1.sst").write_text("someone's")
    with pytest.raises(ColdStoreError, match="exists"):
        TableWriter(tmp_path / "1.sst", schema_of(dim=1), RocksDBCreator())


def test_filters_are_about_as_good_as_rocksdbs():
    assert [probes_of(bits) for bits in (1, 3, 5, 10, 20)] == [1, 2, 3, 6, 11]
