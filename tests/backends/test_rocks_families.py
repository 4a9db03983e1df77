"""Column families of a new database are named first and made together; until then they have no rows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import rocksdict

from kvemb.backends import rocks_families
from kvemb.backends.rocks import RocksDatabase
from kvemb.backends.rocks_families import MANY
from kvemb.errors import ColdStoreError
from kvemb.options import RocksDBCreator
from kvemb.rows.block import RowBlock
from kvemb.rows.schema import Schema
from tests.backends.test_cold_store import database

SCHEMA = Schema(np.dtype(np.int64), np.dtype(np.float32), 2)
NAMES = [f"table{number}" for number in range(2 * MANY)]


def row_of(key: int) -> RowBlock:
    rows = RowBlock(SCHEMA, 1)
    rows.keys[:], rows.values[:] = key, key
    return rows


@pytest.mark.parametrize("names", [NAMES[:1], NAMES[: MANY - 1], NAMES[:MANY], NAMES])
def test_the_first_file_makes_all_families(tmp_path, names):
    opened = database(tmp_path / "rows")
    stores = [opened.create(name, SCHEMA, RocksDBCreator()) for name in names]
    assert RocksDatabase.families(tmp_path / "rows") == []
    stores[-1].write(row_of(7))
    assert sorted(RocksDatabase.families(tmp_path / "rows")) == sorted(names)
    for number, store in enumerate(stores[:-1]):
        store.write(row_of(number))
    for number, store in enumerate(stores):
        _, found = store.read(np.arange(20))
        assert np.flatnonzero(found).tolist() == [7 if store is stores[-1] else number]
    opened.close()


def test_a_family_without_rows_reads_as_empty_and_is_not_made(tmp_path):
    opened = database(tmp_path / "rows")
    store = opened.create("table", SCHEMA, RocksDBCreator())
    rows, found = store.read(np.arange(3))
    assert (len(rows), found.tolist()) == (0, [False] * 3)
    assert list(store.scan(10)) == []
    assert (store.splits(4), store.disk_bytes(), opened.crowded("table")) == ([], 0, False)
    store.clear()
    opened.bound_metadata()
    assert RocksDatabase.families(tmp_path / "rows") == []
    opened.close()


def test_a_checkpoint_has_families_without_rows(tmp_path):
    opened = database(tmp_path / "rows")
    for name in NAMES:
        opened.create(name, SCHEMA, RocksDBCreator())
    opened.drop(NAMES[3])
    opened.checkpoint(tmp_path / "copy")
    later = opened.create("later", SCHEMA, RocksDBCreator())
    assert "later" in RocksDatabase.families(tmp_path / "rows"), "the others may be in use: it is made at once"
    later.write(row_of(1))
    opened.drop("later")
    opened.close()
    assert sorted(RocksDatabase.families(tmp_path / "copy")) == sorted({*NAMES} - {NAMES[3]})
    assert sorted(RocksDatabase.families(tmp_path / "rows")) == sorted({*NAMES} - {NAMES[3]})


def test_making_them_can_be_tried_again(tmp_path, monkeypatch):
    opened = database(tmp_path / "rows")
    stores = [opened.create(name, SCHEMA, RocksDBCreator()) for name in NAMES]

    def full(*args):
        raise OSError("No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(rocks_families.rd, "Rdict", full)
            with pytest.raises(ColdStoreError, match="No space left"):
                stores[0].write(row_of(7))
        assert not stores[0].read(np.array([7]))[1].any()
    stores[0].write(row_of(7))
    assert stores[0].read(np.array([7]))[1].all()
    opened.close()


def test_a_family_that_was_made_before_an_interruption_is_used(tmp_path, monkeypatch):
    opened = database(tmp_path / "rows")
    store, make = opened.create("table", SCHEMA, RocksDBCreator()), rocksdict.Rdict.create_column_family

    def interrupted(self, name, options):
        make(self, name, options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rocks_families.rd.Rdict, "create_column_family", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.write(row_of(7))
    store.write(row_of(7))
    assert store.read(np.array([7]))[1].all()
    opened.close()


def test_reads_go_on_while_families_are_made(tmp_path):
    opened = database(tmp_path / "rows")
    stores = [opened.create(name, SCHEMA, RocksDBCreator()) for name in NAMES]
    failures: list[BaseException] = []
    ended = threading.Event()

    def read(number: int) -> None:
        seen = False
        try:
            while not ended.is_set():
                _, found = stores[number].read(np.array([number]))
                assert found[0] or not seen, "a row that was read is gone"
                seen = bool(found[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for number, store in enumerate(stores):
        store.write(row_of(number))
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(store.read(np.array([number]))[1].all() for number, store in enumerate(stores))
    opened.close()


def test_a_store_that_is_kept_does_not_keep_the_database_locked(tmp_path):
    opened = database(tmp_path / "rows")
    kept = [opened.create(name, SCHEMA, RocksDBCreator()) for name in NAMES]
    kept[0].write(row_of(1))
    opened.close()
    again = rocksdict.Rdict(
        str(tmp_path / "rows"),
        rocksdict.Options(raw_mode=True),
        column_families=dict.fromkeys(NAMES, rocksdict.Options(raw_mode=True)),
    )
    again.close()
