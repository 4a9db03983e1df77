"""Checkpoints opened in place do not change, and damage is reported with its file."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
from blocks import SCHEMA, rows_of, values_of
from manifests import ID, entry_of, manifest_of

from kvemb.durability import cold_databases, readable
from kvemb.durability.checkpoint import complete
from kvemb.durability.keyfile import write_keys
from kvemb.durability.manifest import Epoch, EpochChanges
from kvemb.errors import Corruption
from kvemb.options import RocksDBCreator
from kvemb.rows.codec import order_keys


@pytest.fixture
def made(tmp_path):
    """A checkpoint of `users`, five rows, all of them recorded; returns its path and its manifest."""
    sizes = {"cache_bytes": 1 << 20}
    database = cold_databases.to_write(tmp_path / "database", manifest_of(), **sizes)
    database.create("users", SCHEMA, RocksDBCreator()).write(rows_of(range(5), 3.0))
    (tmp_path / "made" / "changes").mkdir(parents=True)
    database.checkpoint(tmp_path / "made" / "rows")
    database.close()
    write_keys(tmp_path / "made" / "changes" / "000001.keys", [order_keys(np.arange(5), SCHEMA)])
    epochs = [Epoch(ID, {"users": EpochChanges(cleared=True, files=["000001.keys"])})]
    described = manifest_of(variables={"users": entry_of(rows=5)}, changes=epochs)
    return tmp_path / "made", complete(tmp_path / "made", described)


def state(folder):
    return sorted(
        (path.relative_to(folder), path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")
    )


def test_rows_are_read_and_no_file_is_added_or_changed(made):
    path, described = made
    before = state(path)
    with readable.opened(path, described) as opened:
        store = opened.rows("users")
        found, there = store.read(np.array([4, 9, 0]))
        assert values_of(found) == {4: 3.0, 0: 3.0}
        assert there.tolist() == [True, False, True]
        assert opened.rows("users") is store, "opened once"
        assert opened.rows("others") is None
    assert state(path) == before


@pytest.mark.parametrize("most", [1, 2, 5, 9])
def test_recorded_keys_come_in_batches_of_at_max_so_many(made, most):
    path, described = made
    with readable.opened(path, described) as opened:
        cleared, batches = opened.recorded(described.changes, "users", most)
        sizes = [len(batch) for batch in batches]
        assert cleared
        assert sum(sizes) == 5
        assert max(sizes) == min(most, 5)
        assert opened.recorded([], "users", most)[0] is False


def test_the_database_is_closed_and_its_links_are_gone_even_after_an_error(made):
    database, links = Mock(), []

    def open_database(rows, described):
        links.append(rows)
        assert rows != made[0] / "rows"
        return database

    def use():
        with readable.database_in_place(*made, open_database) as opened:
            assert opened is database
            assert not opened.close.called
            raise KeyError

    with pytest.raises(KeyError):
        use()
    assert database.close.called
    assert not links[0].exists()


def in_place(made, open_database):
    with readable.database_in_place(*made, open_database):
        pytest.fail("it was opened")


def test_a_damaged_file_is_named_before_anything_is_opened(made):
    (options,) = (made[0] / "rows").glob("OPTIONS-*")  # RocksDB itself would not notice
    data = options.read_bytes()
    options.unlink()
    options.write_bytes(data + b"#")
    with pytest.raises(Corruption, match=rf"{options} is damaged"):
        in_place(made, lambda rows, described: pytest.fail("it was opened"))


def test_an_error_of_opening_gets_the_name_of_the_damaged_table_file(made):
    (file,) = (made[0] / "rows").glob("*.sst")
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.unlink()
    file.write_bytes(data)
    refuse = Mock(side_effect=Corruption("block checksum mismatch"))
    with pytest.raises(Corruption, match=rf"{file} is damaged.*: block checksum mismatch"):
        in_place(made, refuse)
