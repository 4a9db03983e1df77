"""Every read is compared with RocksDB's of the same moment, and with a model, whatever happens to the files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from table_readers import SCHEMA, TINY, Modelled, opened, read, reads_by_kernels, removals_of, rows_at

from kvemb.backends.rocks import RocksDatabase
from kvemb.backends.rocks_store import RocksStore
from kvemb.backends.table_files import table_file
from kvemb.backends.table_files.writer import TableWriter
from kvemb.errors import ColdStoreError
from kvemb.limits import Limits
from kvemb.options import RocksDBCreator
from kvemb.rows.block import RowBlock

KEYS = np.arange(-3000, 3000)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RocksDatabase]:
    database = opened(tmp_path / "rows")
    yield database
    database.close()


@pytest.fixture
def modelled(database: RocksDatabase) -> Modelled:
    return Modelled(database.create("rows", SCHEMA, TINY), database)


def live(modelled: Modelled, folder: Path, seed: int, steps: int) -> None:
    """A random life. RocksDB merges the files behind it."""
    random, store = np.random.default_rng(seed), modelled.store
    names = ["write"] * 12 + ["few"] * 8 + ["remove", "ingest"] * 3 + ["compact", "clear"]
    for moment in range(steps):
        some = random.choice(KEYS, random.integers(1, 900), replace=False)
        match random.choice(names):
            case "write":
                modelled.write(some, moment)
            case "few":
                modelled.write(some[:3], moment)
            case "remove":
                modelled.remove(some)
            case "ingest":
                modelled.ingest(folder, some[: len(some) // 2 + 1], some[len(some) // 2 + 1 :], moment)
            case "compact":
                store.compact(lambda done, total: None)
            case "clear":
                modelled.clear()
                if random.random() < 0.7:  # else RocksDB has to be asked for long
                    store.compact(lambda done, total: None)
        modelled.check(random.choice(KEYS, random.integers(1, 1500)))
    modelled.check(np.arange(-3500, 3500))


def test_a_random_life_has_the_rows_of_a_model(modelled, tmp_path):
    live(modelled, tmp_path, 1, 60)
    assert modelled.by_kernels > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_lives_have_the_rows_of_a_model(modelled, tmp_path, seed):
    live(modelled, tmp_path, 100 + seed, 250)


def test_rocksdb_is_asked_for_no_row(modelled, monkeypatch):
    monkeypatch.setattr(modelled.store, "_get", lambda keys: pytest.fail("RocksDB was asked"))
    modelled.write(KEYS, 1)
    modelled.write(KEYS[:50], 2)
    modelled.remove(KEYS[50:60])
    rows, found = modelled.store.read(KEYS)
    np.testing.assert_array_equal(~found, np.isin(KEYS, KEYS[50:60]))
    np.testing.assert_array_equal(rows.scores, np.where(np.isin(rows.keys, KEYS[:50]), 2, 1))


def test_files_may_be_merged_and_deleted_while_a_version_has_them(modelled):
    for moment in range(4):
        modelled.write(KEYS[moment::2], moment)
    modelled.check(KEYS)
    version = modelled.store._tables._version
    before = set(version.files)
    modelled.store.family.compact_range(None, None)
    modelled.store._tables._version = version
    version.number = modelled.store._count("current-super-version-number")  # as if the merge had not been noticed
    modelled.check(KEYS)
    assert modelled.store._tables._version is version
    version.number = 0
    modelled.check(KEYS)
    assert not before & set(modelled.store._tables._version.files)


def with_listing(store: RocksStore, listing: Any) -> None:
    """Replace what RocksDB lists."""
    store.family = Mock(wraps=store.family, property_value=listing)


def test_a_file_that_is_deleted_before_it_is_mapped_is_listed_again(modelled):
    modelled.write(KEYS, 1)
    text = modelled.store.family.property_value
    outdated = [text("rocksdb.sstables").replace(":", "99:", 1) for _ in range(2)]
    outdated = [listing.replace("\n ", "\n 99") for listing in outdated]
    with_listing(modelled.store, lambda name: outdated.pop() if outdated else text(name))
    modelled.check(KEYS)
    assert reads_by_kernels(modelled.store)


def test_a_cleared_table_is_read_by_kernels(modelled):
    modelled.write(KEYS, 1)
    modelled.write(KEYS[:10], 1)
    modelled.check(KEYS)
    modelled.clear()
    modelled.check(KEYS)
    modelled.write(KEYS[:100], 2)
    modelled.check(KEYS)
    modelled.check(KEYS)
    assert reads_by_kernels(modelled.store)
    modelled.store.family.compact_range(None, None)
    modelled.check(KEYS)
    assert reads_by_kernels(modelled.store)


def test_a_file_of_rows_and_a_deletion_of_all_is_read_by_rocksdb(modelled, tmp_path):
    modelled.write(KEYS, 1)
    modelled.store.compact(lambda done, total: None)
    modelled.clear()
    modelled.write(KEYS[::2], 2)
    true = modelled.store.family.property_value("rocksdb.sstables")
    listed = true.replace("[1 .. 1]['' seq:1", "[1 .. 2]['' seq:1")
    assert listed != true
    with_listing(modelled.store, lambda name: listed)
    modelled.check(KEYS)
    assert not reads_by_kernels(modelled.store)


def test_a_write_that_fails_leaves_the_rows_of_before_and_no_file(modelled, monkeypatch):
    modelled.write(KEYS, 1)
    with monkeypatch.context() as patched:
        patched.setattr(TableWriter, "finish", Mock(side_effect=ColdStoreError("the disk is full")))
        with pytest.raises(ColdStoreError, match="full"):
            modelled.store.write(rows_at(KEYS[:400], 2))
    modelled.check(KEYS)
    modelled.write(KEYS[:400], 3)
    modelled.check(KEYS)
    assert not list(modelled.database.path.glob("*.new.sst"))


def test_the_last_row_of_a_key_is_written(modelled):
    modelled.store.write(RowBlock.joined([rows_at(KEYS[:9], 1), removals_of(KEYS[:4]), rows_at(KEYS[2:3], 2)], SCHEMA))
    modelled.moments = {KEYS[2]: 2} | dict.fromkeys(KEYS[4:9].tolist(), 1)
    modelled.check(KEYS)


@pytest.mark.parametrize(
    "creator",
    [
        *(RocksDBCreator(compression=name) for name in ("lz4", "zstd", "snappy")),
        *(RocksDBCreator(bloom_bits=bits) for bits in (0, 1, 40)),
        *(RocksDBCreator(block_bytes=size) for size in (256, 1 << 16)),
        *(RocksDBCreator(compaction="level"), RocksDBCreator(read_mode="pread"), RocksDBCreator(read_mode="direct")),
    ],
    ids=repr,
)
def test_files_of_all_options_are_read(tmp_path, creator):
    database = opened(tmp_path / "rows")
    store = database.create("rows", SCHEMA, creator)
    store.write(rows_at(KEYS, 1))
    store.write(rows_at(KEYS[::3], 2))
    database.close()
    for read_only in (True, False):
        database = opened(tmp_path / "rows", {"rows": creator}, read_only=read_only)
        modelled = Modelled(database.attach("rows", SCHEMA), database)
        modelled.moments = {key: 1 + (at % 3 == 0) for at, key in enumerate(KEYS.tolist())}
        modelled.check(np.arange(-4000, 4000))
        kernels = creator.read_mode == "mmap" and creator.compression == "none"
        assert bool(modelled.by_kernels) == kernels
        database.close()


def test_kernels_read_no_files_once_a_variable_asked_for_another_read_mode(database):
    first = database.create("first", SCHEMA, RocksDBCreator())
    database.create("second", SCHEMA, RocksDBCreator(read_mode="pread"))
    modelled = Modelled(first, database)
    modelled.write(KEYS, 1)
    modelled.check(KEYS)
    assert not modelled.by_kernels


def test_files_beyond_the_limit_of_mappings_are_read_by_rocksdb(modelled, monkeypatch):
    monkeypatch.setattr(table_file.mappings, "most", 0)
    modelled.write(KEYS, 1)
    modelled.check(KEYS)
    assert not reads_by_kernels(modelled.store)


def test_a_table_that_nobody_reads_keeps_no_files(modelled):
    modelled.write(KEYS, 1)
    modelled.check(KEYS)
    for moment in range(5):
        modelled.write([moment], moment)
    assert modelled.store._tables._version is None
    modelled.check(KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_read_sees_at_least_what_was_written_before_it(tmp_path, seconds):
    """Threads read while one writes, with flushes, merges and ingests behind: no row is older than the last write."""
    database = opened(tmp_path / "rows", limits=Limits(cold_parallel_keys=1000))
    store: RocksStore = database.create("rows", SCHEMA, TINY)
    begun, ended, failures = [0], [0], list[BaseException]()
    stop = threading.Event()
    store.write(rows_at(KEYS, 0))

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            while not stop.is_set():
                keys = random.choice(KEYS, random.integers(1, 2000))
                least = ended[0]
                rows, found = store.read(keys)
                most = begun[0]
                assert found.all()
                assert least <= rows.scores.min()
                assert rows.scores.max() <= most
                expected = rows_at(rows.keys, 0)
                moments = rows.scores.astype(np.uint64)[:, None]
                np.testing.assert_array_equal(rows.words, expected.words + moments)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    while not stop.is_set():
        begun[0] += 1
        if begun[0] % 5 == 0:
            file = database.sorted_file(tmp_path / f"{begun[0]}.sst", SCHEMA, TINY)
            file.append(rows_at(KEYS, begun[0]))
            file.finish()
            database.ingest("rows", file.path)
            os.unlink(file.path)
        else:
            store.write(rows_at(KEYS, begun[0]))
        ended[0] = begun[0]
    for thread in threads:
        thread.join()
    database.close()
    assert failures == []
    assert ended[0] > 5
    assert removals_of([1]).flags[0]


def test_a_store_may_be_closed_while_a_read_runs(tmp_path):
    database = opened(tmp_path / "rows")
    store = database.create("rows", SCHEMA, TINY)
    store.write(rows_at(KEYS, 1))
    inside, go_on = threading.Event(), threading.Event()

    def spread(work: Any, count: int) -> None:
        inside.set()
        assert go_on.wait(60)
        work(0, count)

    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(read(partial(store._tables.read, store.family), KEYS, spread)))
    thread.start()
    assert inside.wait(60)
    database.close()
    go_on.set()
    thread.join()
    rows, states = seen[0]
    assert (states == 1).all()
    np.testing.assert_array_equal(rows.words, rows_at(KEYS, 1).words)
