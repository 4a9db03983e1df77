"""What contracts.ColdStore promises, for every implementation; and how RocksDB's errors are told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from schemas import schema_of
from table_readers import read_by_rocksdb

from kvemb.backends import rocks_store
from kvemb.backends.memory_store import MemoryStore
from kvemb.backends.rocks import RocksDatabase
from kvemb.contracts import Family
from kvemb.errors import ColdStoreError, Corruption, KvembError
from kvemb.options import RocksDBCreator
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.rows.schema import VALUE_DTYPES, Schema

LEAST, MOST = -(2**63), 2**63 - 1
SIGNED = np.array([LEAST, LEAST + 1, -256, -1, 0, 1, 255, 256, MOST - 1, MOST])


def rows_of(schema: Schema, keys: Any, salt: int = 0) -> RowBlock:
    """Rows whose bytes are made from their keys and the salt."""
    block = RowBlock(schema, len(keys))
    block.keys[:] = np.asarray(keys).astype(np.int64)
    block.scores[:] = np.arange(len(keys)) + salt
    block.steps[:] = block.keys // 7
    block.flags[:] = DIRTY
    with np.errstate(over="ignore"):
        for word in range(schema.row_words):
            block.words[:, word] = (block.keys.view(np.uint64) + np.uint64(word + salt)) * np.uint64(0x9E3779B97F4A7C15)
    return block


def removal_of(schema: Schema, keys: Any) -> RowBlock:
    block = RowBlock(schema, len(keys))
    block.keys[:] = keys
    block.flags[:] = DIRTY | REMOVED
    return block


def assert_same(got: RowBlock, expected: RowBlock) -> None:
    """All columns alike; the cold tier keeps no flag of the memory's."""
    for column in ("keys", "scores", "steps", "words"):
        np.testing.assert_array_equal(getattr(got, column), getattr(expected, column), err_msg=column)
    assert not got.flags.any()


def all_rows(store: Any, batch_rows: int = 1000) -> RowBlock:
    return RowBlock.joined(list(store.scan(batch_rows)), store.schema)


def database(path: Path, families: Any = None, **changes: Any) -> RocksDatabase:
    arguments = {"cache_bytes": 1 << 20, "read_only": False, **changes}
    return RocksDatabase(path, {name: Family(creator) for name, creator in (families or {}).items()}, **arguments)


@pytest.fixture(params=["memory", "rocks"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Schema], Any]]:
    """A function that makes an empty cold store."""
    if request.param == "memory":
        yield MemoryStore
        return
    opened = database(tmp_path / "rows")
    yield lambda schema: opened.create("rows", schema, RocksDBCreator())
    opened.close()


# The contract.


@pytest.mark.parametrize("name", VALUE_DTYPES)
def test_rows_come_back_as_they_were_written(make, name):
    schema = schema_of(name)
    store = make(schema)
    rows = rows_of(schema, SIGNED)
    store.write(rows)
    wanted = np.array([5, MOST, 0, LEAST, 0, 77])
    got, found = store.read(wanted)
    assert found.tolist() == [False, True, True, True, True, False]
    assert_same(got, rows.select([9, 4, 0, 4]))


def test_an_empty_store_has_nothing(make):
    schema = schema_of()
    store = make(schema)
    got, found = store.read(np.empty(0, np.int64))
    assert (len(got), len(found)) == (0, 0)
    got, found = store.read(np.array([1, 2]))
    assert (len(got), found.tolist()) == (0, [False, False])
    assert list(store.scan(10)) == []
    store.write(RowBlock(schema, 0))
    store.clear()
    assert list(store.scan(10)) == []
    assert store.disk_bytes() >= 0


@pytest.mark.parametrize("key", ["int64", "int32", "uint64"])
@pytest.mark.parametrize("batch_rows", [1, 3, 1000])
def test_a_scan_is_in_numeric_order(make, key, batch_rows):
    dtype = np.dtype(key)
    limits = np.iinfo(dtype)
    public = np.unique(np.array([limits.min, limits.max, 0, 1, 255, 256, 2**31 - 1, limits.max // 2], dtype))
    schema = schema_of(key=key)
    store = make(schema)
    internal = public.view(np.int64) if key == "uint64" else public.astype(np.int64)
    rows = rows_of(schema, internal)
    store.write(rows.select(np.random.default_rng(1).permutation(len(rows))))
    batches = list(store.scan(batch_rows))
    assert all(0 < len(batch) <= batch_rows for batch in batches)
    assert_same(all_rows(store, batch_rows), rows)


def test_later_writes_replace_rows_and_remove_them(make):
    schema = schema_of()
    store = make(schema)
    store.write(rows_of(schema, SIGNED))
    store.write(rows_of(schema, SIGNED[:5], salt=9))
    store.write(removal_of(schema, [LEAST, 1, 4444]))
    expected = rows_of(schema, SIGNED)
    expected.put(slice(0, 5), rows_of(schema, SIGNED[:5], salt=9))
    expected = expected.select(~np.isin(SIGNED, [LEAST, 1]))
    assert_same(all_rows(store), expected)
    mixed = rows_of(schema, [1, 2])
    mixed.flags[1] |= REMOVED
    store.write(mixed)
    assert store.read(np.array([1, 2]))[1].tolist() == [True, False]


def test_a_scan_shows_the_instant_it_was_asked_for(make):
    schema = schema_of()
    store = make(schema)
    before = rows_of(schema, np.arange(100))
    store.write(before)
    scan = store.scan(10)
    store.write(rows_of(schema, [*range(-50, 50), 200], salt=3))
    store.write(removal_of(schema, np.arange(90, 100)))
    seen = [next(scan)]
    store.clear()
    empty = store.scan(10)
    store.write(rows_of(schema, [5000]))
    assert_same(RowBlock.joined([*seen, *scan], schema), before)
    assert list(empty) == []


@pytest.mark.parametrize("key", ["int64", "uint64"])
def test_clear_reaches_the_largest_key_and_lets_it_come_back(make, key):
    schema = schema_of(key=key)
    store = make(schema)
    keys = SIGNED if key == "int64" else np.sort(SIGNED.view(np.uint64)).view(np.int64)
    store.write(rows_of(schema, keys))
    store.clear()
    assert list(store.scan(10)) == []
    assert not store.read(keys)[1].any()
    store.write(rows_of(schema, keys[[0, -1]], salt=5))
    assert_same(all_rows(store), rows_of(schema, keys[[0, -1]], salt=5))


def test_a_large_read_is_in_the_order_of_keys(make):
    schema = schema_of()
    store = make(schema)
    keys = np.random.default_rng(2).permutation(20_000)
    rows = rows_of(schema, keys)
    store.write(rows)
    wanted = np.concatenate([keys[::-1], np.arange(-500, 0)])
    got, found = store.read(wanted)
    assert found.tolist() == [True] * 20_000 + [False] * 500
    assert_same(got, rows.select(slice(None, None, -1)))
    assert store.disk_bytes() > 20_000 * schema.row_bytes


# RocksDB.


def damaged(path: Path, schema: Schema, keys: Any) -> Path:
    """A checkpoint whose data has a few bytes flipped in the middle of its largest table file."""
    opened = database(path / "rows")
    opened.create("rows", schema, RocksDBCreator()).write(rows_of(schema, keys))
    opened.checkpoint(path / "copy")
    opened.close()
    file = max((path / "copy").glob("*.sst"), key=lambda sst: sst.stat().st_size)
    data = bytearray(file.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 32):
        data[at] ^= 0xFF
    file.unlink()  # it is a hard link
    file.write_bytes(data)
    return path / "copy"


@pytest.mark.parametrize("read_only", [False, True])
def test_a_flipped_byte_is_named_and_never_read_as_a_row(tmp_path, read_only):
    schema = schema_of(dim=16)
    keys = np.arange(4000)
    path = damaged(tmp_path, schema, keys)
    opened = database(path, {"rows": RocksDBCreator()}, read_only=read_only)
    store = opened.attach("rows", schema)
    with pytest.raises(Corruption, match="rows"):
        store.read(keys)
    with pytest.raises(Corruption, match="rows"):
        deque(store.read(np.array([key])) for key in keys)
    seen: list[RowBlock] = []
    with pytest.raises(Corruption, match="rows"):
        seen.extend(store.scan(100))
    assert 0 < len(seen) < 40
    for at, block in enumerate(seen):
        assert_same(block, rows_of(schema, keys).select(slice(100 * at, 100 * at + len(block))))
    got, found = store.read(keys[:50])
    assert found.all()
    assert_same(got, rows_of(schema, keys).select(slice(0, 50)))
    opened.close()


def test_a_truncated_file_is_named(tmp_path):
    schema = schema_of(dim=16)
    path = damaged(tmp_path, schema, np.arange(4000))
    file = max(path.glob("*.sst"), key=lambda sst: sst.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(Corruption, match="open"):
        database(path, {"rows": RocksDBCreator()})


def test_a_missing_file_is_named(tmp_path):
    schema = schema_of(dim=16)
    path = damaged(tmp_path, schema, np.arange(4000))
    max(path.glob("*.sst"), key=lambda sst: sst.stat().st_size).unlink()
    with pytest.raises(KvembError, match="open"):
        database(path, {"rows": RocksDBCreator()})


def test_records_of_another_width_are_refused(make):
    narrow, wide = schema_of(dim=2, widths=()), schema_of(dim=4)
    store = make(wide)
    store.write(rows_of(wide, np.arange(10)))
    assert len(all_rows(store)) == 10  # they are in a file now
    store.schema = narrow
    with pytest.raises(Corruption, match="must be 25 bytes each"):
        store.read(np.arange(10))
    with pytest.raises(Corruption, match="25 bytes each"):
        list(store.scan(10))


def test_what_cannot_be_opened_is_an_error_of_kvembs(tmp_path):
    (tmp_path / "file").write_text("not a database")
    with pytest.raises(ColdStoreError, match="open"):
        database(tmp_path / "file")
    with pytest.raises(KvembError, match="open"):
        database(tmp_path / "missing", read_only=True)


@pytest.mark.parametrize(
    "creator",
    [
        *(RocksDBCreator(), RocksDBCreator(block_bytes=16384, bloom_bits=0), RocksDBCreator(read_mode="mmap")),
        *(RocksDBCreator(compaction="level"), RocksDBCreator(compaction="universal")),
        *(RocksDBCreator(read_mode="direct"), RocksDBCreator(background_jobs=1, write_buffer_bytes=1 << 16)),
        *(RocksDBCreator(compression=name) for name in ("lz4", "zstd", "snappy")),
        RocksDBCreator(compression=("none", "none", "lz4", "zstd", "zstd", "zstd", "zstd")),
    ],
    ids=repr,
)
def test_every_option_stores_the_same_rows(tmp_path, creator):
    schema = schema_of()
    rows = rows_of(schema, np.arange(3000))
    opened = database(tmp_path / "rows")
    store = opened.create("rows", schema, creator)
    store.write(rows)
    opened.checkpoint(tmp_path / "copy")
    opened.close()
    again = database(tmp_path / "copy", {"rows": creator}, read_only=True)
    store = again.attach("rows", schema)
    assert_same(all_rows(store), rows)
    got, found = store.read(np.arange(2990, 3010))
    assert found.tolist() == [True] * 10 + [False] * 10
    assert_same(got, rows.select(slice(2990, None)))
    again.close()


def test_variables_share_a_database_and_nothing_else(tmp_path):
    opened = database(tmp_path / "rows")
    schemas = {"a": schema_of(), "b/c d": schema_of("int8", 7, key="uint64"), "ü": schema_of("float64", key="int32")}
    for salt, (name, schema) in enumerate(schemas.items()):
        opened.create(name, schema, RocksDBCreator()).write(rows_of(schema, np.arange(50), salt))
    opened.drop("a")
    opened.checkpoint(tmp_path / "copy")
    opened.amend(tmp_path / "copy", ["b/c d"], [])
    assert len(all_rows(opened.attach("b/c d", schemas["b/c d"]))) == 50
    opened.close()
    again = database(tmp_path / "copy", {"ü": RocksDBCreator()}, read_only=True)
    assert_same(all_rows(again.attach("ü", schemas["ü"])), rows_of(schemas["ü"], np.arange(50), 2))
    for gone in ("a", "b/c d"):
        with pytest.raises(ColdStoreError, match="open"):
            again.attach(gone, schemas[gone])
    again.close()


@pytest.mark.parametrize("by", ["kernels", "rocksdb"])
@pytest.mark.parametrize("free", [1, 2, [1, 1, 2], [1, 2]], ids=["never", "at once", "for the last keys", "after some"])
def test_a_large_read_is_shared_as_soon_as_cores_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int | list[int], by: str
) -> None:
    schema, keys = schema_of(), np.arange(-6000, 6000, 2)
    monkeypatch.setattr(rocks_store, "free_cores", Mock(side_effect=free) if isinstance(free, list) else lambda: free)
    opened = database(tmp_path / "rows")
    opened.threads = 2
    try:
        store = opened.create("rows", schema, RocksDBCreator())
        store.write(rows_of(schema, keys))
        shared = Mock(wraps=opened.readers.map)
        monkeypatch.setattr(opened.readers, "map", shared)
        read = store.read if by == "kernels" else partial(read_by_rocksdb, store)
        rows, found = read(wanted := np.arange(-6000, 6000))
        np.testing.assert_array_equal(found, wanted % 2 == 0)
        assert_same(rows, rows_of(schema, keys))
        assert shared.call_count == (free != 1)
    finally:
        opened.close()
