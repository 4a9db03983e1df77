"""Rows in key order as table files: which rows follow, where a file ends, and what is ingested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loads import DIM, merged, model_of, rows, table_of

import kvemb
from kvemb import bulk
from kvemb.bulk import Loaded, Rows
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.offline import table_files


def test_a_checkpoint_during_a_load_takes_no_key_from_the_delta(store, tmp_path):
    table = table_of(store)

    def source() -> Any:
        yield rows([1, 2], 1)
        store.checkpoint(tmp_path / "during")
        yield rows([3], 1)

    bulk.load(table, source())
    after = store.checkpoint(tmp_path / "after")
    changes = after.changes(tmp_path / "during")
    assert sorted(key for change in changes for key in change.keys.tolist()) == [1, 2, 3]


def test_rows_in_memory_alone_are_loaded_too(store):
    table = store.get_variable("table", dim=DIM, kv_creator=kvemb.MemoryCreator(), hot_rows=32)
    assert bulk.load(table, [Rows(np.arange(100), np.ones((100, DIM), np.float32))]) == Loaded(100, 0, 0)
    assert sum(map(len, bulk.scan(table))) == 100
    assert bulk.ranges(table, 4)[0][1] == 24


def test_rows_that_ascend_and_then_do_not_are_one_load(store):
    table = table_of(store)
    batches = [rows(np.arange(0, 100), 1), rows(np.arange(100, 200), 2), rows(np.arange(50, 150), 3), rows([5], 4)]
    assert bulk.load(table, batches) == Loaded(200, 0, 0, 101)
    assert model_of(bulk.scan(table)) == merged({}, batches, "replace")
    store.check()


def block_of(table: kvemb.Variable, keys: Any) -> Any:
    return inside(table).operations.new_rows(np.asarray(keys, np.int64), np.ones((len(keys), DIM), np.float32))


@pytest.fixture
def files(open_store, tmp_path) -> Iterator[tuple[table_files.TableFiles, kvemb.Variable]]:
    """Files of three rows at most, of an empty table."""
    table = table_of(open_store(tmp_path / "store", limits=Limits(table_file_bytes=200)))
    (tmp_path / "files").mkdir()
    made = table_files.TableFiles(table, tmp_path / "files")
    yield made, table
    made.close()


def test_rows_follow_whose_keys_ascend_and_are_above_the_last(files):
    made, table = files
    assert all(made.follows(block_of(table, keys)) for keys in ([], [-7], [-7, 0, 7]))
    assert not any(made.follows(block_of(table, keys)) for keys in ([1, 0], [1, 1]))
    made.append(block_of(table, [-3, 5]))
    assert made.follows(block_of(table, [6]))
    assert not any(made.follows(block_of(table, keys)) for keys in ([5], [4, 6], [-4]))
    made.append(block_of(table, []))
    assert made.rows == 2
    assert not made.follows(block_of(table, [5]))


def test_a_file_ends_when_it_is_full_and_all_are_ingested_together(files, tmp_path):
    made, table = files
    for first in range(0, 20, 4):
        made.append(block_of(table, np.arange(first, first + 4)))
    made.finish()
    assert len(list((tmp_path / "files").glob("*.sst"))) == 5
    storage = inside(table).storage
    with storage.bypassing() as cold:
        assert sum(map(len, cold.scan(100))) == 0
        storage.ingest_recorded(made.ingest, made.rows, made.step)
    assert table.export()[0].tolist() == list(range(20))
    assert not list((tmp_path / "files").glob("*.sst"))


def test_what_is_drained_is_there_in_key_order_and_no_longer_here(files, tmp_path):
    made, table = files
    for keys in ([-5, -1], [3, 4, 5, 6], [9]):
        made.append(block_of(table, keys))
    drained = [key for block in made.drain() for key in block.keys.tolist()]
    assert drained == [-5, -1, 3, 4, 5, 6, 9]
    assert made.rows == 0
    assert made.follows(block_of(table, [-5]))
    made.ingest()
    assert table.export()[0].tolist() == []
