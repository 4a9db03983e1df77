"""recover(): once the cause of a failed write is gone, a store goes on where it was, with every row."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from crashes import copy_of_open

import kvemb
from kvemb.backends import rocks, rocks_store
from kvemb.durability import changes, layout, point_writer
from kvemb.errors import Closed, ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.journal import journal
from kvemb.limits import Limits
from kvemb.memory import memtables
from kvemb.tiers import storage
from tests.histories import small_spill

FULL = OSError(errno.ENOSPC, "No space left on device")
DIM, ROWS = 4, 600
SMALL = Limits(**small_spill(32))


class Trained:
    """A store whose rows are mostly cold, and their values by key. open_store: with which it is opened."""

    def __init__(self, open_store: Any, path: Path, durability: str = "checkpoint") -> None:
        self.open, self.path = open_store, path
        self.store = open_store(path, limits=SMALL, durability=durability)
        self.table = self.store.get_variable("table", dim=DIM, hot_rows=64)
        self.values: dict[int, float] = {}
        self.value, self.random = 0.0, np.random.default_rng(1)
        self.train(ROWS)
        self.store.flush()

    def train(self, count: int = 40) -> None:
        """Set rows to a new value. If the call raises, its rows are as they were or as it gave them."""
        keys = self.random.choice(ROWS, count, replace=False)
        self.value += 1
        try:
            self.table.upsert(keys, np.full((count, DIM), self.value, np.float32))
        except Poisoned:
            got, exists = self.table.lookup(keys, touch=False, return_exists=True)
            for key, row, there in zip(keys.tolist(), got, exists, strict=True):
                assert row.tolist() == [row[0]] * DIM
                if there and row[0] == self.value:
                    self.values[key] = self.value
            raise
        self.values.update(dict.fromkeys(keys.tolist(), self.value))

    def train_until_poisoned(self) -> None:
        def train() -> None:
            for _ in range(1000):
                self.train()
                self.table.lookup(self.random.choice(ROWS, 40, replace=False))

        with pytest.raises(Poisoned, match=r"every row can still be read.*call recover"):
            train()

    def check(self, store: kvemb.Store | None = None) -> None:
        table = (store or self.store).variables["table"]
        keys = sorted(self.values)
        assert table.size() == len(keys)
        assert table.lookup(keys, touch=False)[:, 0].tolist() == [self.values[key] for key in keys]

    def check_goes_on(self, crash: Path | None = None) -> None:
        """Train, flush, close and open the store; every row is there each time. crash: for a copy without closing."""
        self.check()
        if crash is not None:
            copy_of_open(self.path, crash)
            with self.open(crash) as store:
                self.check(store)
        for _ in range(5):
            self.train()
        self.check()
        self.store.flush()
        self.store.check(deep=True)
        self.train()
        self.store.close()
        with self.open(self.path) as store:
            assert store.recovery is None
            self.check(store)
            store.check(deep=True)


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (rocks_store.RocksStore, "write", ColdStoreError("No space left on device")),
        (storage.TieredStorage, "record", FULL),
        (memtables.Memtables, "_write_oldest", MemoryError()),
        (memtables.Memtable, "put", MemoryError()),
    ],
)
def test_rows_that_could_not_be_spilled_are_written_once_they_can(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception
) -> None:
    trained = Trained(open_store, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Mock(side_effect=error))
        trained.train_until_poisoned()
        trained.check()  # every lookup works, whatever the thread that writes met
    for call in (trained.train, trained.store.flush, lambda: trained.store.checkpoint(tmp_path / "checkpoint")):
        with pytest.raises(Poisoned) as caught:
            call()
        assert caught.value.__cause__ is not None
    trained.store.recover()
    trained.check_goes_on(tmp_path / "crash")
    trained.store.close()


def test_a_write_that_fails_behind_all_calls_poisons_the_store(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(open_store, tmp_path / "store")
    inner = inside(trained.table).storage
    while not inner.memtables.rows:
        trained.train()
    monkeypatch.setattr(memtables.Memtables, "_write_oldest", Mock(side_effect=MemoryError("in the thread")))
    writing = inner.memtables.seal()
    assert isinstance(writing.exception(60), MemoryError)
    trained.check()
    assert isinstance(trained.store.state.cause, MemoryError)
    assert trained.store.state.halfway is None


@pytest.mark.independent
@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (rocks.RocksDatabase, "checkpoint", ColdStoreError("full")),
        (rocks.RocksDatabase, "ingest", ColdStoreError("full")),
        (rocks.RocksDatabase, "sorted_file", MemoryError()),
        (changes.ChangeLog, "seal_epoch", FULL),
        (changes, "write_keys", FULL),
        (point_writer.PointWriter, "_describe", MemoryError()),
        (point_writer.manifest, "write", FULL),
        (layout, "set_current", FULL),
    ],
)
@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_a_point_that_could_not_be_written_is_written_anew(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    owner: Any, name: str, error: Exception, durability: str,
) -> None:  # fmt: skip
    trained = Trained(open_store, tmp_path / "store", durability)
    first = trained.store.checkpoint(tmp_path / "first")
    trained.train()
    before = {**trained.values}
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Mock(side_effect=error))
        for attempt in (trained.store.flush, trained.store.recover, trained.store.recover):
            with pytest.raises((Poisoned, MemoryError)):
                attempt()
        trained.check()
    trained.store.recover()
    trained.train()
    last = trained.store.checkpoint(tmp_path / "last")
    changed = {key for change in last.changes(first) for key in change.keys.tolist()}
    first_values = dict(zip(*_exported(first), strict=True))
    wanted = {key for key, value in trained.values.items() if first_values.get(key) != value}
    assert wanted <= changed
    assert before.keys() <= trained.values.keys()
    trained.check_goes_on(tmp_path / "crash")


def _exported(checkpoint: kvemb.Checkpoint) -> tuple[list[int], list[float]]:
    with kvemb.open(checkpoint.path, read_only=True) as store:
        keys, values = store.variables["table"].export()
        return keys.tolist(), values[:, 0].tolist()


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_log_that_could_not_be_written_begins_anew(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    trained = Trained(open_store, tmp_path / "store", "write")
    trained.train()
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, call, Mock(side_effect=FULL))
        with pytest.raises(Poisoned, match="cannot write the log"):
            trained.train()
        with suppress(Poisoned):
            trained.store.recover()  # at the sync of the segment
    if trained.store.state.cause is not None:
        trained.store.recover()
    trained.check_goes_on(tmp_path / "crash")


def test_a_crash_while_a_store_with_a_log_recovers_keeps_what_was_acknowledged(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(open_store, tmp_path / "store", "write")
    trained.train()
    acknowledged = {**trained.values}
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", Mock(side_effect=FULL))
        with pytest.raises(Poisoned):
            trained.train()
    with monkeypatch.context() as patch:
        patch.setattr(layout, "set_current", Mock(side_effect=FULL))
        for _ in range(2):
            with pytest.raises(Poisoned):
                trained.store.recover()
    copy_of_open(trained.path, tmp_path / "crash")
    trained.store.close()
    trained.values = acknowledged
    for path in (tmp_path / "crash", trained.path):
        with open_store(path) as store:
            trained.check(store)


def test_a_failure_while_rows_move_is_not_recovered_from(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(open_store, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(storage.HotTables, "insert", Mock(side_effect=MemoryError("while rows moved")))
        with pytest.raises(MemoryError):
            trained.train()
    for call in (trained.train, trained.store.recover, trained.store.flush):
        with pytest.raises(Poisoned, match=r"a change failed: while rows moved; rows may be half-way.*open it again"):
            call()


def test_a_drop_that_failed_is_not_recovered_from(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(open_store, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(changes.ChangeLog, "seal_epoch", Mock(side_effect=FULL))
        with pytest.raises(Poisoned):
            trained.store.drop_variable("table")
    with pytest.raises(Poisoned, match="half-way"):
        trained.store.recover()
    trained.check()


def test_a_clear_that_failed_is_not_recovered_from(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB had deleted the rows in memory, and wrote that later: recovering saved the hot ones only."""
    trained = Trained(open_store, tmp_path / "store")
    delete = rocks_store.RocksStore._delete_all

    def failing(store: rocks_store.RocksStore) -> None:
        delete(store)
        raise ColdStoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rocks_store.RocksStore, "_delete_all", failing)
        with pytest.raises(Poisoned):
            trained.table.clear()
    with pytest.raises(Poisoned, match=r"the disk is full; rows may be half-way.*open it again"):
        trained.store.recover()
    trained.store.close()
    with open_store(trained.path) as store:
        trained.check(store)


def test_a_family_that_creating_left_behind_is_dropped(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(open_store, tmp_path / "store")
    families = inside(trained.store).database.column_families
    create = families.create

    def create_and_fail(*args: Any) -> None:
        create(*args)
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(families, "create", create_and_fail)
        with pytest.raises(Poisoned):
            trained.store.get_variable("other", dim=2)
    trained.store.recover()
    trained.store.get_variable("other", dim=2).upsert([1], np.ones((1, 2), np.float32))
    trained.check_goes_on(tmp_path / "crash")


def test_recovering_a_sound_store_does_nothing_and_a_closed_one_refuses(store: kvemb.Store) -> None:
    point = store.point
    store.recover()
    assert store.point == point
    store.close()
    with pytest.raises(Closed):
        store.recover()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 48 MiB, which the test fills."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs takes a privilege that is not there")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["checkpoint", "write"])
def test_a_disk_that_was_full_is_trained_on_when_there_is_room(
    open_store: Any, small_disk: Path, durability: str
) -> None:
    """RocksDB itself has stopped: it looks for room every 5 seconds."""
    trained = Trained(open_store, small_disk / "store", durability)

    def fill_up() -> None:
        for _ in range(10_000):
            trained.train()
            trained.store.flush()

    for room in (0, 100_000, 400_000):
        ballast = small_disk / "ballast"
        with suppress(OSError):
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
        with pytest.raises(Poisoned, match="No space left"):
            fill_up()
        with pytest.raises(Poisoned, match="No space left"):
            trained.store.recover()
        trained.check()
        ballast.unlink()
        trained.store.recover()
        trained.check()
        trained.train()
    trained.check_goes_on()
