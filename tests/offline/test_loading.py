"""Whole rows loaded into a variable: all at once or none, beside what it holds and what is written meanwhile."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from loads import DIM, KEY, VALUE, merged, model_of, rows, table_of

import kvemb
from kvemb import bulk
from kvemb.bulk import Loaded, Rows
from kvemb.errors import Poisoned
from kvemb.offline import sorter, table_files


def test_hot_rows_are_replaced_kept_and_counted(store):
    table = table_of(store)
    table.upsert(np.arange(100), np.full((100, DIM), 7, np.float32))
    assert bulk.load(table, [rows(np.arange(50, 150), 1)], on_conflict="keep") == Loaded(50, 0, 50)
    assert table.lookup([0, 99, 100])[:, 0].tolist() == [7, 7, 101]
    assert bulk.load(table, [rows(np.arange(50, 150), 2)]) == Loaded(0, 100, 0)
    assert table.lookup([0, 99, 100])[:, 0].tolist() == [7, 101, 102]
    with pytest.raises(ValueError, match="key 0 is in 'table' already"):
        bulk.load(table, [rows([500], 3), rows([0], 3)], on_conflict="error")
    assert table.size() == 150
    assert bulk.load(table, [rows([500], 3)], on_conflict="error") == Loaded(1, 0, 0)


def test_what_is_loaded_is_durable_and_in_deltas(open_store, tmp_path):
    store = open_store(tmp_path / "store", durability="write")
    table = table_of(store)
    table.upsert([1], np.ones((1, DIM), np.float32))
    before = store.checkpoint(tmp_path / "before")
    bulk.load(table, [rows([5, 6], 1)])
    table.upsert([7], np.ones((1, DIM), np.float32))
    after = store.checkpoint(tmp_path / "after")
    assert sorted(key for change in after.changes(before) for key in change.keys.tolist()) == [5, 6, 7]
    with kvemb.restore(after, tmp_path / "copy", memory_budget="4MiB") as copy:
        assert model_of(bulk.scan(copy.variables["table"])) == model_of(bulk.scan(table))


@pytest.mark.parametrize(
    ("batch", "error", "match"),
    [
        (Rows(KEY.reshape(1, 1), VALUE), ValueError, "keys must have the shape"),
        (Rows(np.zeros(1), VALUE), TypeError, "keys"),
        (Rows(KEY, np.zeros((1, 3), np.float32)), ValueError, "values"),
        (Rows(KEY, np.zeros((1, DIM), np.complex64)), TypeError, "complex64"),
        (Rows(KEY, VALUE, {"m": VALUE}), ValueError, "slots must be"),
        (Rows(KEY, VALUE, scores=np.zeros(2)), ValueError, "scores must have"),
        (Rows(KEY, VALUE, scores=np.array([np.nan])), ValueError, "not a number"),
        (Rows(KEY, VALUE, steps=np.array([0.5])), TypeError, "steps must be"),
        (Rows(KEY, VALUE, steps=np.array([2**64 - 1], np.uint64)), TypeError, "steps must be int64"),
        *((Rows(KEY, VALUE, steps=np.array([step])), ValueError, "steps must be from") for step in (2**61 + 1, -1)),
    ],
)
def test_a_batch_that_does_not_fit_changes_nothing(store, batch, error, match):
    table = table_of(store)
    with pytest.raises(error, match=match):
        bulk.load(table, [rows([1], 1), batch])
    assert table.size() == 0
    assert [path.name for path in store.path.glob("live/load*")] == []


def test_a_source_that_fails_changes_nothing(store):
    table = table_of(store)

    def source() -> Any:
        yield rows([1], 1)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        bulk.load(table, source())
    assert table.size() == 0


def test_a_disk_that_refuses_poisons_and_the_store_is_as_it_was(monkeypatch, open_store, tmp_path):
    from kvemb.backends.rocks import RocksDatabase
    from kvemb.errors import ColdStoreError

    store = open_store(tmp_path / "store")
    table = table_of(store)
    table.upsert([1], np.ones((1, DIM), np.float32))
    store.flush()
    refuse = Mock(side_effect=ColdStoreError("no"))
    with monkeypatch.context() as patch:
        patch.setattr(RocksDatabase, "ingest", refuse)
        with pytest.raises(Poisoned):
            bulk.load(table, [rows([2], 1)])
    assert table.lookup([1])[0, 0] == 1
    store.close()
    with open_store(tmp_path / "store") as again:
        assert again.variables["table"].size() == 1


def test_training_goes_on_beside_a_load(store):
    """Threads write other keys meanwhile: nothing is lost on either side."""
    table = table_of(store, hot_rows=64)
    bulk.load(table, [rows([10_000], 1)])
    stop, count = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            table.upsert([-1 - count[0]], np.ones((1, DIM), np.float32))
            count[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    for start in range(0, 3000, 1000):
        bulk.load(table, [rows(np.arange(start, start + 1000), 1)])
    stop.set()
    thread.join()
    assert table.size() == 3001 + count[0]
    assert sum(map(len, bulk.scan(table))) == table.size()
    store.check()


def test_an_empty_table_that_is_written_to_meanwhile_is_told(store):
    table = table_of(store)

    def source() -> Any:
        yield rows([1, 2], 1)
        table.upsert([2], np.zeros((1, DIM), np.float32))

    with pytest.raises(ValueError, match="was written to meanwhile; load again"):
        bulk.load(table, source())
    assert sum(map(len, bulk.scan(table))) == table.size() == 1


@pytest.mark.parametrize("conflict", ["replace", "keep"])
def test_a_load_that_is_interrupted_changes_nothing(monkeypatch, store, tmp_path, conflict):
    """Wherever it is: all rows come at once, or none."""
    table = table_of(store)
    before = store.checkpoint(tmp_path / "before")
    batches = [rows([1, 2, 3], 1), rows([2, 9], 2)]
    interrupt = Mock(side_effect=KeyboardInterrupt)
    for place, name in (
        (sorter.Sorter, "blocks"),
        (table_files.TableFiles, "finish"),
        (table_files.TableFiles, "drain"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                bulk.load(table, batches, on_conflict=conflict)
        assert table.size() == 0
    assert bulk.load(table, batches, on_conflict=conflict) == Loaded(4, 0, 0, 1)
    assert model_of(bulk.scan(table)) == merged({}, batches, conflict)
    changes = store.checkpoint(tmp_path / "after").changes(before)
    assert sorted(key for change in changes for key in change.keys.tolist()) == [1, 2, 3, 9]


@pytest.mark.limits(sort_bytes=400, table_file_bytes=400, scan_rows=7)
@pytest.mark.parametrize("apart", [1, 300])
def test_equal_keys_of_a_source_are_counted_and_follow_on_conflict(store, apart):
    """With "error" the last of them won silently, and with "keep" too."""
    table = table_of(store)
    table.upsert([5], np.zeros((1, DIM), np.float32))
    batches = [rows([9], 1), *(rows([1000 - at], 0) for at in range(apart)), rows([9], 2)]
    with pytest.raises(ValueError, match=r"key 9 is given twice for '\w+'; set on_conflict to replace, .* or to keep"):
        bulk.load(table, batches, on_conflict="error")
    assert table.size() == 1
    for conflict, stays in (("keep", 1), ("replace", 2)):
        done = bulk.load(table, batches, on_conflict=conflict)
        assert (done.duplicates, done.added + done.replaced + done.kept) == (1, apart + 1)
        assert bulk.read(table, [9]).values.tolist() == rows([9], stays).values.tolist()
