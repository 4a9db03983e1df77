"""One durable point: its content, and the state after each failure."""

from __future__ import annotations

import errno
import signal
import threading
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import kvemb
from kvemb.backends import rocks
from kvemb.durability import changes, cold_databases, inventory, layout, manifest, point_writer
from kvemb.durability.point_writer import PointWriter, TargetFailed
from kvemb.errors import ColdStoreError, Poisoned
from kvemb.handle import inside
from kvemb.store_state import StoreState
from tests.histories import DIM
from tests.programs import run_python


def put(store: kvemb.Store, keys: Any, value: float, name: str = "table", **arguments: Any) -> None:
    table = store.get_variable(name, dim=DIM, **arguments)
    table.upsert(keys, np.full((len(keys), DIM), value, np.float32))


def writer_of(store: kvemb.Store, target: Any = None, without: Any = ()) -> PointWriter:
    engine = inside(store)
    parts = [table.part() for name, table in engine.tables.items() if name not in without]
    number = engine.points.next_number()
    return PointWriter(number, parts, target, engine.database, engine.points, engine.changes, engine.log, without)


def begin(store: kvemb.Store, writer: PointWriter, closing: Any = None) -> None:
    writer.take_snapshots(inside(store).writer, inside(store).state, closing)


def points_of(store: kvemb.Store) -> list[str]:
    """The durable points there are; drafts too."""
    return sorted(path.name for path in (store.path / "points").iterdir())


def current(store: kvemb.Store) -> manifest.Manifest:
    return manifest.read(layout.current_point(store.path))


def shown(store: kvemb.Store) -> dict[int, float]:
    """The rows of the last durable point."""
    with kvemb.open(store.path, memory_budget="4MiB", follow=True) as follower:
        keys, values = follower.variables["table"].export()
        return dict(zip(keys.tolist(), values[:, 0].tolist(), strict=True))


def too_full(*args: Any) -> None:
    raise ColdStoreError("too full")


def test_a_point_has_the_rows_of_its_snapshot(store):
    put(store, [1, 2], 1.0)
    writer = writer_of(store)
    begin(store, writer)
    put(store, [2, 3], 2.0)
    before = points_of(store)
    assert len(before) == 2, "the draft is beside the point before"
    assert writer.write() is None
    assert shown(store) == {1: 1.0, 2: 1.0}
    assert points_of(store) == [layout.current_point(store.path).name]
    store.flush()
    assert shown(store) == {1: 1.0, 2: 2.0, 3: 2.0}


def test_a_state_that_refuses_writes_leaves_no_draft(store):
    put(store, [1], 1.0)
    before, writer, state = points_of(store), writer_of(store), StoreState("other")
    state.poison(ColdStoreError("too full"))
    with pytest.raises(Poisoned):
        writer.take_snapshots(inside(store).writer, state, None)
    assert points_of(store) == before
    store.flush()
    assert shown(store) == {1: 1.0}


def test_what_fails_after_the_snapshot_ends_it(store):
    put(store, [1], 1.0)
    before, writer = points_of(store), writer_of(store)
    with pytest.raises(ColdStoreError, match="too full"):
        begin(store, writer, too_full)
    assert points_of(store) == before
    # A scan waits for a snapshot under way.
    scan = threading.Thread(target=store.variables["table"].export, daemon=True)
    scan.start()
    scan.join(60)
    assert not scan.is_alive()
    store.flush()
    assert shown(store) == {1: 1.0}


def test_a_point_that_fails_leaves_the_one_before_and_every_row_to_the_next(monkeypatch, store):
    put(store, [1, 2], 1.0)
    store.flush()
    put(store, [2, 3], 2.0)
    before, writer = points_of(store), writer_of(store)
    with monkeypatch.context() as patch:
        patch.setattr(rocks.RocksDatabase, "ingest", too_full)
        begin(store, writer)
        with pytest.raises(ColdStoreError, match="too full"):
            writer.write()
    assert points_of(store) == before
    assert shown(store) == {1: 1.0, 2: 1.0}
    store.flush()
    assert shown(store) == {1: 1.0, 2: 2.0, 3: 2.0}


def test_a_point_whose_rows_may_be_half_way_is_not_the_stores(store):
    put(store, [1], 1.0)
    store.flush()
    put(store, [1], 2.0)
    before, writer = points_of(store), writer_of(store)
    begin(store, writer)
    inside(store).state.poison(KeyboardInterrupt())  # as of a call that another thread stopped
    with pytest.raises(Poisoned, match="half-way"):
        writer.write()
    assert points_of(store) == before
    assert shown(store) == {1: 1.0}


def test_a_checkpoint_that_fails_is_told_apart_from_a_point_that_does(monkeypatch, store, tmp_path):
    put(store, [1], 1.0)
    before, writer = points_of(store), writer_of(store, tmp_path / "checkpoint")
    begin(store, writer)
    with monkeypatch.context() as patch:
        patch.setattr(layout, "unpack", too_full)
        with pytest.raises(TargetFailed) as told:
            writer.write()
    assert isinstance(told.value.error, ColdStoreError)
    assert points_of(store) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    taken = store.checkpoint(tmp_path / "checkpoint")
    assert (taken.variables["table"].rows, current(store).parent) == (1, taken.id)


def test_a_crowded_database_is_waited_for(monkeypatch, store):
    put(store, [1], 1.0)
    asked = [False, True, True]
    monkeypatch.setattr(rocks.RocksDatabase, "crowded", lambda *args: asked.pop())
    writer = writer_of(store)
    begin(store, writer)
    writer.write()
    assert asked == []


def test_a_variable_is_not_locked_for_the_writing_of_others(store, monkeypatch):
    """Otherwise the locks of a flush grow as the square of the number of variables."""
    names = [f"table {number}" for number in range(9)]
    for name in names:
        put(store, [1], 1.0, name)
    writer = writer_of(store)
    begin(store, writer)
    accesses = [inside(store).tables[name].storage.access for name in names]
    takes = [Mock(wraps=access.take) for access in accesses]
    for access, take in zip(accesses, takes, strict=True):
        monkeypatch.setattr(access, "take", take)
    writer.write()
    assert takes[0].call_count > 0
    assert {take.call_count for take in takes} == {takes[0].call_count}


def test_a_variable_that_is_left_out_is_in_neither_manifest_nor_rows(store):
    put(store, [1], 1.0)
    put(store, [1], 1.0, "other")
    store.flush()
    assert sorted(current(store).variables) == ["other", "table"]
    writer = writer_of(store, without=["other"])
    begin(store, writer)
    writer.write()
    assert list(current(store).variables) == ["table"]
    assert cold_databases.families(layout.current_point(store.path) / "rows") == ["table"]
    store.flush()  # the other is still in the store


def test_a_variable_without_checkpoints_is_in_the_point_alone(store, tmp_path):
    put(store, [1], 1.0)
    put(store, [1], 1.0, "own", checkpoint=False)
    taken = store.checkpoint(tmp_path / "checkpoint")
    assert sorted(current(store).variables) == ["own", "table"]
    assert list(taken.variables) == ["table"]
    assert cold_databases.families(taken.path / "rows") == ["table"]


@pytest.mark.parametrize("last", [False, True])
def test_the_log_begins_again_at_the_snapshot_and_a_last_point_has_none(open_store, tmp_path, last):
    store = open_store(tmp_path / "store", durability="write")
    put(store, [1], 1.0)
    writer, called = writer_of(store), []
    if not last:
        inside(store).log.prepare(writer._number)
    begin(store, writer, (lambda: called.append(writer._base)) if last else None)
    assert len(called) == last, "called once the copy of the database is under way"
    writer.write()
    point, logged = layout.current(store.path)
    assert logged is not last
    assert [path.name for path in (store.path / "log").iterdir()] == ([] if last else [f"{point.name}.log"])


@pytest.mark.parametrize(
    ("where", "what"),
    [
        *((rocks.RocksDatabase, what) for what in ("checkpoint", "ingest", "amend", "sorted_file")),
        *((changes.ChangeLog, what) for what in ("seal_epoch", "link_to")),
        *((changes, "write_keys"), (point_writer, "write_hot"), (inventory.Inventory, "take")),
    ],
)
def test_a_store_whose_disk_refuses_a_point_is_poisoned_and_reads_on(monkeypatch, open_store, tmp_path, where, what):
    store = open_store(tmp_path / "store")
    put(store, [1, 2], 1.0)
    store.flush()
    put(store, [2, 3], 0.0)
    before, full = points_of(store), Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(where, what, full)
        with pytest.raises(Poisoned, match="No space left"):
            store.checkpoint(tmp_path / "checkpoint")
    assert points_of(store) == before, "the draft is deleted"
    assert store.variables["table"].lookup([1, 2, 3])[:, 0].tolist() == [1, 0, 0]
    for call in (lambda: put(store, [4], 1.0), store.flush, lambda: store.checkpoint(tmp_path / "after")):
        with pytest.raises(Poisoned, match="No space left"):
            call()
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    again = open_store(tmp_path / "store")
    assert again.variables["table"].export()[0].tolist() == [1, 2]


@pytest.mark.slow
def test_a_kill_while_the_copy_is_amended_loses_nothing(open_store, tmp_path):
    done = run_python(
        """
        import os, signal, sys, kvemb
        from kvemb.backends import rocks
        from tests.durability.test_point_writer import put

        store, amend = kvemb.open(sys.argv[1], memory_budget="32MiB"), rocks.amend
        for value, keys in ((1, [1, 2]), (0, [2, 3])):
            for name in "ab":
                put(store, keys, value, name)
            if value:
                store.flush()

        def up_to_b(added):
            for name, file in added:
                if name == "b":
                    os.kill(os.getpid(), signal.SIGKILL)
                yield name, file

        rocks.amend = lambda path, drop, added: amend(path, drop, up_to_b(added))
        store.checkpoint(sys.argv[2])
        """,
        tmp_path / "store",
        tmp_path / "checkpoint",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = open_store(tmp_path / "store")
    for name in "ab":
        keys, values = store.variables[name].export()
        assert (keys.tolist(), values[:, 0].tolist()) == ([1, 2], [1, 1])
    assert not (tmp_path / "checkpoint").exists()
    put(store, [4], 1, "a")
    store.checkpoint(tmp_path / "checkpoint")
    assert len(points_of(store)) == 1, "what was left is deleted"


@pytest.mark.slow
def test_a_checkpoint_of_a_spent_budget_has_few_files(tmp_path):
    """Each took the rows of a slot, as all other memory held hot or waiting rows: 2,735 files, and minutes."""
    chance = np.random.default_rng(0)
    with kvemb.open(tmp_path / "store", memory_budget="16MiB") as store:
        optimizer = kvemb.optimizers.Adagrad(0.1)
        tables = [store.get_variable(name, dim=32, optimizer=optimizer) for name in ("users", "items")]
        for _ in range(8):
            for table in tables:
                table.upsert(chance.integers(0, 10**9, 8192), np.ones((8192, 32), np.float32))
        assert all(table.stats.cold_writes for table in tables)
        found = store.checkpoint(tmp_path / "checkpoint")
        assert len(list(found.path.rglob("*.sst"))) < 60
