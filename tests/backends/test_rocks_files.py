"""Table files made outside a database and taken whole by it, and a table split by the sizes of its files."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from kvemb.backends.rocks_files import splits
from kvemb.errors import ColdStoreError, Corruption
from kvemb.limits import Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.codec import LAST_KEY, order_keys
from tests.backends.test_cold_store import all_rows, assert_same, database, rows_of, schema_of


def sorted_file_of(opened, path, rows):
    order = np.argsort(order_keys(rows.keys, rows.schema))
    file = opened.sorted_file(path, rows.schema, RocksDBCreator())
    file.append(rows.select(order[:7]))
    file.append(rows.select(order[7:]))
    file.finish()
    assert file.rows == len(rows)
    return file


def test_a_sorted_file_replaces_rows_in_the_database_and_in_a_copy_of_it(tmp_path):
    opened, schema = database(tmp_path / "rows"), schema_of(dim=3)
    store = opened.create("a", schema, RocksDBCreator())
    store.write(rows_of(schema, np.arange(100), 0))
    opened.checkpoint(tmp_path / "copy")
    newer = rows_of(schema, np.arange(50, 150), 1)
    file = sorted_file_of(opened, tmp_path / "1.sst", newer)
    before = file.path.read_bytes()
    opened.ingest("a", file.path)
    store.write(rows_of(schema, np.arange(60, 70), 2))
    assert file.path.read_bytes() == before, "both share the file, so nobody may write to it"
    opened.amend(tmp_path / "copy", [], [("a", file)])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy", "rows"]
    copy = database(tmp_path / "copy", {"a": RocksDBCreator()}, read_only=True).attach("a", schema)
    for found, changed in (
        (all_rows(store), rows_of(schema, np.arange(60, 70), 2)),
        (all_rows(copy), newer.part(10, 20)),
    ):
        assert_same(found.part(0, 50), rows_of(schema, np.arange(100), 0).part(0, 50))
        assert_same(found.part(60, 70), changed)
        assert_same(found.part(70, 150), newer.part(20, 100))
    assert not opened.crowded("a")


@pytest.mark.parametrize("links", [True, False])
def test_what_an_interrupted_ingestion_left_is_replaced(tmp_path, monkeypatch, links):
    """It was killed between the link of the file and the end of RocksDB's work."""
    opened, schema = database(tmp_path / "rows"), schema_of(dim=3)
    store = opened.create("a", schema, RocksDBCreator())
    rows = rows_of(schema, np.arange(50), 0)
    file = sorted_file_of(opened, tmp_path / "1.sst", rows)
    os.link(file.path, tmp_path / "1.link.sst")
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "refused")))
    opened.ingest("a", file.path)
    assert_same(all_rows(store), rows)
    file.path.write_bytes(b"not a table file")
    with pytest.raises(Corruption, match="ingest"):
        opened.ingest("a", file.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.sst", "rows"]
    opened.close()


def test_files_that_nobody_merges_are_not_waited_for(tmp_path):
    # On a full disk a checkpoint once waited for ever for a merge that had failed.
    limits, schema = Limits(crowded_files=3), schema_of(dim=3)
    opened = database(tmp_path / "rows", limits=limits, compacting=False)
    store = opened.create("a", schema, RocksDBCreator(compaction="level"))
    for number in range(8):  # the first is put below
        store.write(rows_of(schema, np.arange(9), number))
    assert int(store.family.property_int_value("rocksdb.num-files-at-level0")) == 7
    assert not opened.crowded("a")
    opened.close()


def test_a_sorted_file_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    opened, schema = database(tmp_path / "rows"), schema_of(dim=3)
    opened.create("a", schema, RocksDBCreator())
    with pytest.raises(ColdStoreError, match="write"):
        sorted_file_of(opened, tmp_path / "missing" / "1.sst", rows_of(schema, np.arange(9), 0))
    with pytest.raises(ColdStoreError, match="ingest"):
        opened.ingest("a", tmp_path / "missing.sst")


def listing(*files):
    """A family with these files: size, first key, last key."""
    lines = [
        f" {at}:{size}[1 .. 9]['{first:016X}' seq:1, type:1 .. '{last:016X}' seq:1, type:1](0)"
        for at, (size, first, last) in enumerate(files)
    ]
    return SimpleNamespace(property_value=lambda name: "\n".join(lines) if name == "rocksdb.sstables" else None)


def test_a_table_is_split_where_its_files_are_large():
    assert splits(listing((100, 0, 1000)), 4) == [250, 500, 750]
    assert splits(listing((100, 0, 1000), (300, 1000, 2000)), 2) == [1333]
    assert splits(listing((100, 5000, 6000)), 2) == [5500]
    high = LAST_KEY - 1000
    assert splits(listing((100, high, LAST_KEY)), 2) == [high + 500]
    assert splits(listing(), 4) == []
    assert splits(SimpleNamespace(property_value=lambda name: None), 4) == []
    assert splits(listing((100, 0, 1000)), 1) == []


def test_the_ends_of_a_range_deletion_are_no_keys(tmp_path):
    """The first has no bytes; the other is one byte longer than a key, and so far above the last."""
    family = listing((100, 0, 0xFF << 64))
    assert splits(family, 2) == [1 << 63]
    opened = database(tmp_path / "rows")
    store = opened.create("table", schema_of(dim=2), RocksDBCreator())
    store.write(rows_of(schema_of(dim=2), np.arange(9)))
    store.clear()
    store.compact(lambda *_: None)
    assert store.splits(2) == []
    opened.close()


def test_a_clear_waits_as_long_as_rocksdb_stalls_writes(tmp_path):
    opened = database(tmp_path / "rows")
    store = opened.create("table", schema_of(dim=2), RocksDBCreator())
    store.write(rows_of(schema_of(dim=2), np.arange(9)))
    family, stalls = store.family, iter([True, True])

    def delete_range(*given):
        if next(stalls, False):
            raise Exception("Result incomplete: Write stall")
        family.delete_range(*given)

    store.family = SimpleNamespace(delete_range=delete_range, flush=family.flush, property_int_value=lambda name: 0)
    store.clear()
    store.family = family
    assert next(store.scan(10), None) is None
    opened.close()
