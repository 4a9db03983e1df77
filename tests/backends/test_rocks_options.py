"""The memory of cold rows: whole filters and indexes up to a share, partitions beyond, no data blocks."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_readers import reads_by_kernels
from waiting import wait_until

import kvemb
from kvemb.backends.rocks import RocksDatabase
from kvemb.backends.rocks_options import LOG_BYTES, MANIFEST_BYTES, database_creator, holding_whole
from kvemb.contracts import Family
from kvemb.errors import Corruption
from kvemb.handle import inside
from kvemb.options import RocksDBCreator
from tests.blocks import SCHEMA, rows_of

SHARE = 32 << 10  # of filters and indexes held whole: some 20,000 rows


CREATOR = RocksDBCreator(write_buffer_bytes=1 << 16, read_mode="pread")


def opened(path: Path, rows: int | None = None, creator: RocksDBCreator = CREATOR) -> RocksDatabase:
    families = {} if rows is None else {"rows": Family(creator, rows, 42)}
    return RocksDatabase(path, families, cache_bytes=2 * SHARE, read_only=False)


def opened_unmapped(path: Path) -> RocksDatabase:
    """A database with an empty family "rows" that does not map its files."""
    database = opened(path)
    database.create("rows", SCHEMA, CREATOR)
    database.close()
    return opened(path, 0)  # CREATOR's read mode counts from here on


def fill(store: Any, first: int, last: int) -> None:
    writes = (last - first) // 1000
    for each in range(writes):
        store.write(rows_of(np.arange(first + each, last, writes)))  # files that overlap are merged
    store.read(np.arange(first, last))  # a file that was merged is opened, and counted, when it is first read


def assert_all_there(store: Any, keys: Any) -> None:
    rows, found = store.read(keys)
    assert found.all()
    np.testing.assert_array_equal(rows.keys, keys)
    np.testing.assert_array_equal(rows.values, rows_of(keys).values)


def test_the_smallest_families_are_held_whole():
    families = {"large": Family(CREATOR, 10_000, 280), "small": Family(CREATOR, 100, 280), "none": Family(CREATOR)}
    assert holding_whole(families, 0) == {"none"}
    assert holding_whole(families, 1000) == {"none", "small"}
    assert holding_whole(families, 1 << 20) == {"none", "small", "large"}


@pytest.mark.slow
def test_filters_and_indexes_are_whole_while_they_fit_and_stay_bounded_beyond(tmp_path):
    database = opened_unmapped(tmp_path / "rows")
    store = database.attach("rows", SCHEMA)
    fill(store, 0, 10_000)
    assert not store.partitioned
    assert store.metadata_bytes() > 10_000
    fill(store, 10_000, 199_000)
    fill(store, 199_000, 200_000)  # each write asks what the files before it hold
    assert store.partitioned
    wanted = np.arange(0, 200_000, 7)

    def bounded() -> bool:
        assert_all_there(store, wanted)
        return bool(store.metadata_bytes() < 3 * SHARE)

    # Before merges end there may be many small files, each with an index of its own.
    wait_until(bounded)
    assert not store.read(np.arange(200_000, 201_000))[1].any()
    database.close()
    for known, partitioned in ((200_000, True), (10_000, False)):
        database = opened(tmp_path / "rows", known)
        store = database.attach("rows", SCHEMA)
        assert store.partitioned == partitioned
        assert_all_there(store, wanted)
        database.close()


@pytest.mark.slow
def test_mapped_filters_and_indexes_take_no_memory_of_the_process(tmp_path):
    database = opened(tmp_path / "rows")
    store = database.create("rows", SCHEMA, RocksDBCreator())
    fill(store, 0, 100_000)
    store.compact(lambda done, total: None)
    database.close()
    database = opened(tmp_path / "rows", 100_000, RocksDBCreator())
    store = database.attach("rows", SCHEMA)
    assert not store.partitioned
    assert_all_there(store, np.arange(100_000))
    assert store.metadata_bytes() < 10_000  # not read into memory: that would take 125,000
    assert store.family.property_int_value("rocksdb.block-cache-capacity") is None
    fill(store, 100_000, 200_000)
    assert not store.partitioned
    database.close()


def test_a_mapped_file_with_partitions_is_read_without_a_block_cache(tmp_path):
    database = opened_unmapped(tmp_path / "rows")
    database.close()
    database = opened(tmp_path / "rows", 200_000)
    store = database.attach("rows", SCHEMA)
    assert store.partitioned
    fill(store, 0, 10_000)
    database.close()
    database = opened(tmp_path / "rows", 200_000, RocksDBCreator())
    store = database.attach("rows", SCHEMA)
    assert_all_there(store, np.arange(10_000))
    assert not store.read(np.arange(10_000, 11_000))[1].any()
    database.close()


def test_what_rocksdb_knows_of_a_whole_database_only_is_what_its_families_agree_on():
    def of(*creators):
        made = database_creator({str(number): Family(creator) for number, creator in enumerate(creators)})
        return made.read_mode, made.background_jobs

    direct, mapped = RocksDBCreator(read_mode="direct"), RocksDBCreator(background_jobs=5)
    assert of() == ("mmap", 2)
    assert of(direct, direct) == ("direct", 2)
    assert of(direct, mapped) == ("pread", 5)


@pytest.mark.parametrize("first", ["pread", "direct"])
def test_the_first_variable_of_a_new_store_chooses_how_files_are_read(tmp_path, first, caplog):
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        table = store.get_variable("first", dim=1, kv_creator=RocksDBCreator(read_mode=first, background_jobs=3))
        table.upsert([1], [[1.0]])
        store.flush()
        database = inside(store).database
        assert database.read_mode == first == _logged(database.path, "read_mode")
        assert _logged(database.path, "background_jobs") == 3
        assert table.lookup([1]).tolist() == [[1.0]]
    assert caplog.records == []


def test_files_that_stay_mapped_are_told(tmp_path, caplog):
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        store.get_variable("first", dim=1).upsert([1], [[1.0]])
        store.flush()
        store.get_variable("second", dim=1, kv_creator=RocksDBCreator(read_mode="pread"))
        (line,) = caplog.messages
        assert line.startswith("variable 'second' has read_mode='pread', but the store's files are mapped until")
        assert inside(store).database.read_mode == "mmap"
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as store:
        store.get_variable("second")
        assert inside(store).database.read_mode == "pread"
    assert len(caplog.records) == 1


def _logged(rows, what):
    """Return an option of the open database, as RocksDB has written it."""
    text = max(rows.glob("OPTIONS-*")).read_text()
    if what == "background_jobs":
        return int(re.search(r"max_background_jobs=(\d+)", text)[1])
    mapped, direct = (f"{name}=true" in text for name in ("allow_mmap_reads", "use_direct_reads"))
    return "mmap" if mapped else "direct" if direct else "pread"


def test_a_lookup_leaves_no_data_in_the_block_cache(tmp_path):
    database = opened_unmapped(tmp_path / "rows")
    store = database.attach("rows", SCHEMA)
    store.write(rows_of(np.arange(5000)))
    # RocksDB reads both ends of a file that it ingests.
    before = int(store.family.property_int_value("rocksdb.block-cache-usage"))
    assert store.read(np.arange(5000))[1].all()
    assert not store.partitioned
    assert int(store.family.property_int_value("rocksdb.block-cache-usage")) == before < 16384
    database.close()


def test_a_variable_comes_and_goes_while_filters_and_indexes_of_others_are_counted(tmp_path, monkeypatch):
    database = opened_unmapped(tmp_path / "rows")
    database.attach("rows", SCHEMA)
    for name in ("second", "third"):
        store = database.create(name, SCHEMA, CREATOR)
    count, counted = type(store).metadata_bytes, []

    def come_and_go():
        database.create("fourth", SCHEMA, CREATOR)
        database.drop("second")

    other = threading.Thread(target=come_and_go)

    def slowly(store):
        if not counted:
            other.start()
            other.join(0.1)
        counted.append(store)
        return count(store)

    monkeypatch.setattr(type(store), "metadata_bytes", slowly)
    database.bound_metadata()
    other.join()
    database.bound_metadata()
    assert len(counted) == 6
    database.close()


def test_thousands_of_families_may_be_made_before_rocksdbs_log_holds_their_options_only(tmp_path):
    """From a hundred on, each line of the log wrote all of them again: a checkpoint took 40 times as long."""
    database = opened(tmp_path / "rows")
    for number in range(20):
        database.create(f"{number}", SCHEMA, CREATOR)
        database.drop(f"{number}")
    database.close()
    assert 5000 * (tmp_path / "rows" / "LOG").stat().st_size / 20 < LOG_BYTES


def test_filters_and_indexes_are_counted_again_of_one_that_is_created_in_the_place_of_another(tmp_path):
    database = opened(tmp_path / "rows")
    database.create("rows", SCHEMA, CREATOR)
    database.close()
    database = opened(tmp_path / "rows", 200_000)
    assert database.attach("rows", SCHEMA).partitioned
    database.drop("rows")
    assert not database.create("rows", SCHEMA, CREATOR).partitioned
    database.close()


def test_the_manifest_that_checkpoints_copy_is_bounded(tmp_path):
    """By default it grows to 1 GiB: a day of spills made every checkpoint copy and hash tens of megabytes."""
    database = opened(tmp_path / "rows")
    database.create("rows", SCHEMA, CREATOR)
    (options,) = sorted((tmp_path / "rows").glob("OPTIONS-*"))[-1:]
    assert f"max_manifest_file_size={MANIFEST_BYTES}\n" in options.read_text()
    database.close()


@pytest.mark.parametrize("takes_direct", [True, False])
@pytest.mark.parametrize("page_cache", [0, 1 << 30, None])
def test_merges_of_files_that_are_larger_than_the_page_cache_go_past_it(
    tmp_path, monkeypatch, page_cache, takes_direct
):
    database = opened(tmp_path / "rows")
    fill(database.create("rows", SCHEMA, RocksDBCreator()), 0, 20_000)
    database.close()
    opening = os.open

    def os_open(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & getattr(os, "O_DIRECT", 0) and not takes_direct:
            raise OSError(errno.EINVAL, "as on tmpfs")
        return opening(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", os_open)
    database = RocksDatabase(
        tmp_path / "rows",
        {"rows": Family(RocksDBCreator(), 20_000, 42)},
        cache_bytes=2 * SHARE,
        read_only=False,
        page_cache=page_cache,
    )
    if page_cache == 0 and takes_direct != (database._options.past_cache):
        pytest.skip("does not apply: this file system has no direct reads")
    past_cache = page_cache == 0 and takes_direct
    assert database._options.past_cache is past_cache
    options = max((tmp_path / "rows").glob("OPTIONS-*")).read_text(encoding="utf-8")
    for name in ("use_direct_reads", "use_direct_io_for_flush_and_compaction"):
        assert f"{name}={str(past_cache).lower()}" in options
    assert f"allow_mmap_reads={str(not past_cache).lower()}" in options
    store = database.attach("rows", SCHEMA)
    fill(store, 10_000, 30_000)
    store.compact(lambda done, total: None)
    assert_all_there(store, np.arange(30_000))
    assert reads_by_kernels(store), "lookups map the files either way"
    assert sum(map(len, store.scan(1000))) == 30_000
    assert store.metadata_bytes() < 10_000
    database.close()


@pytest.mark.parametrize("read_by_rocksdb", ["compressed", "few files may be open"])
def test_merges_do_not_go_past_the_page_cache_if_rocksdb_reads_rows_for_lookups(tmp_path, monkeypatch, read_by_rocksdb):
    creator = RocksDBCreator(compression="lz4" if read_by_rocksdb == "compressed" else "none")
    database = opened(tmp_path / "rows", creator=creator)
    database.create("rows", SCHEMA, creator).write(rows_of(np.arange(1000)))
    database.close()
    if read_by_rocksdb == "few files may be open":
        monkeypatch.setattr("kvemb.backends.open_files.raise_limit", lambda: 4096)
        monkeypatch.setattr("kvemb.backends.rocks.raise_limit", lambda: 4096)
    families = {"rows": Family(creator, 1000, 42)}
    database = RocksDatabase(tmp_path / "rows", families, cache_bytes=2 * SHARE, read_only=False, page_cache=0)
    assert not database._options.past_cache
    store = database.attach("rows", SCHEMA)
    assert_all_there(store, np.arange(1000))
    assert not reads_by_kernels(store)
    database.close()


def test_a_missing_file_is_damage_also_if_merges_may_go_past_the_page_cache(tmp_path):
    database = opened(tmp_path / "rows")
    database.create("rows", SCHEMA, RocksDBCreator()).write(rows_of(np.arange(1000)))
    database.close()
    (file,) = (tmp_path / "rows").glob("*.sst")
    file.unlink()
    file.symlink_to(tmp_path / "nowhere")
    families = {"rows": Family(RocksDBCreator(), 1000, 42)}
    with pytest.raises(Corruption, match="nowhere"):
        RocksDatabase(tmp_path / "rows", families, cache_bytes=2 * SHARE, read_only=False, page_cache=0)


def test_a_store_leaves_the_page_cache_what_its_budget_does_not_take(tmp_path, monkeypatch):
    seen: list[int | None] = []
    opening = RocksDatabase.__init__

    def spy(self: RocksDatabase, *args: Any, **named: Any) -> None:
        seen.append(named.get("page_cache"))
        opening(self, *args, **named)

    monkeypatch.setattr(RocksDatabase, "__init__", spy)
    monkeypatch.setattr("kvemb.engine.engine.memory_bytes", lambda: 100 << 20)
    for budget in ("64MiB", "128MiB"):
        with kvemb.open(tmp_path / budget, memory_budget=budget):
            pass
    with kvemb.open(tmp_path / "64MiB", memory_budget="64MiB", read_only=True):
        pass
    assert seen == [36 << 20, 0, None]


def test_few_files_are_opened_on_one_thread(tmp_path):
    database = opened(tmp_path / "rows")
    (options,) = sorted((tmp_path / "rows").glob("OPTIONS-*"))[-1:]
    assert "  max_file_opening_threads=1\n" in options.read_text()
    database.close()
