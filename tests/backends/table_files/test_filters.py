"""Bloom filters that RocksDB wrote: every key of a file passes, and about one in a hundred of the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from table_readers import SCHEMA, opened, rows_at

from kvemb.backends.table_files import reading
from kvemb.backends.table_files.filters import hashed_key, line_of, may_have
from kvemb.kernels.compiling import kernel
from kvemb.options import RocksDBCreator
from kvemb.rows.codec import order_keys


@kernel
def _passing(keys: Any, filter_at: int, lines: int, probes: int) -> int:
    count = 0
    for i in range(len(keys)):
        hashed = hashed_key(keys[i])
        count += may_have(hashed, line_of(hashed, filter_at, lines), probes)
    return count


def test_keys_of_a_file_pass_and_few_others(tmp_path):
    database = opened(tmp_path / "rows")
    store = database.create("rows", SCHEMA, RocksDBCreator())
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 20_000)
    store.write(rows_at(np.unique(keys), 1))
    store.read(keys[:1])
    (file,) = store._tables._version.files.values()
    parts = [int(file.row[column]) for column in (reading.FILTER, reading.LINES, reading.PROBES)]
    assert _passing(order_keys(keys, SCHEMA), *parts) == len(keys)
    assert 50 < _passing(order_keys(keys ^ 12345, SCHEMA), *parts) < 400
    database.close()
