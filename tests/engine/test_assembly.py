"""A variable that cannot be made leaves nothing behind: no reserved memory, no column family."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import kvemb
from kvemb import GraphKeys
from kvemb.backends import cpu
from kvemb.durability import cold_databases, layout
from kvemb.engine import assembly
from kvemb.engine.engine import Engine
from kvemb.errors import BackendUnavailable, ColdStoreError, Corruption, Poisoned
from kvemb.handle import inside
from kvemb.operations.table_operations import TableOperations
from kvemb.optimizers import Adagrad


def test_a_variable_too_large_for_the_budget_can_be_asked_for_again_smaller(tmp_path: Path) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        free = store.budget.free
        with pytest.raises(ValueError, match=r"hot_rows of variable 'rows' needs .* free"):
            store.get_variable("rows", dim=64, hot_rows=10_000_000)
        assert (store.budget.free, list(store.variables)) == (free, [])
        var = store.get_variable("rows", dim=64, hot_rows=64)
        var.upsert([1], [[1.0] * 64])
        assert var.size() == 1


def test_a_cold_store_that_cannot_be_made_costs_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        free = store.budget.free
        with monkeypatch.context() as broken:
            broken.setattr(inside(store).database, "create", Mock(side_effect=ColdStoreError("the disk is full")))
            with pytest.raises(ColdStoreError):
                store.get_variable("rows", dim=4)
        assert store.budget.free == free
        assert store.get_variable("rows", dim=4).size() == 0


# Whatever fails half-way leaves nothing.


def state_of(store: kvemb.Store) -> Any:
    """All that a variable leaves: memory, cold stores, names, collections."""
    names = store.get_collection(GraphKeys.GLOBAL_VARIABLES), store.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    families = cold_databases.families(store.path / layout.LIVE / layout.ROWS)
    return store.budget.free, sorted(families), list(store.variables), names


# What is patched, and what it fails with.
STEPS = [
    (cpu.CpuTable, "__init__", MemoryError("no memory")),
    (assembly, "storage_class", MemoryError("no memory")),
    (TableOperations, "warm", Corruption("the hot set is damaged")),
    (assembly.registry, "row_kernels", BackendUnavailable("there is no numba")),
    (Engine, "collect", KeyboardInterrupt()),
]


@pytest.mark.independent
@pytest.mark.parametrize(("place", "name", "error"), STEPS, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("stored", [False, True], ids=["new", "stored"])
@pytest.mark.parametrize("creator", [kvemb.RocksDBCreator(), kvemb.MemoryCreator()], ids=["rocks", "memory"])
def test_a_step_that_fails_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: Exception, stored: bool, creator: Any
) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        store.get_variable("rows" if stored else "other", dim=4).upsert([1, 2], [[1.0] * 4] * 2)
        store.checkpoint(tmp_path / "checkpoint")
    with kvemb.restore(tmp_path / "checkpoint", tmp_path / "copy", memory_budget="8MiB", warm=True) as store:
        if name == "warm" and not stored:
            pytest.skip("does not apply: a new variable has no row that was hot")
        asked = {"dim": 4} if stored else {"dim": 4, "kv_creator": creator}
        before = state_of(store)
        with monkeypatch.context() as broken:
            broken.setattr(place, name, Mock(side_effect=error))
            with pytest.raises(type(error)):
                store.get_variable("rows", **asked)
        assert state_of(store) == before
        variable = store.get_variable("rows", **asked)
        assert variable.size() == (2 if stored else 0)
        store.check()


def test_a_new_variable_whose_durable_point_cannot_be_made_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvemb.open(tmp_path / "store", memory_budget="8MiB", durability="write") as store:
        store.get_variable("first", dim=4).upsert([1], [[1.0] * 4])
        before = state_of(store)
        with monkeypatch.context() as broken:
            broken.setattr(inside(store).database, "checkpoint", Mock(side_effect=ColdStoreError("the disk is full")))
            with pytest.raises(Poisoned, match="the disk is full"):
                store.get_variable("rows", dim=4)
        assert state_of(store) == before
        assert store.variables["first"].lookup([1]).tolist() == [[1.0] * 4]
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        assert list(store.variables) == ["first"]
        assert store.variables["first"].lookup([1]).tolist() == [[1.0] * 4]
        assert store.get_variable("rows", dim=4).size() == 0


def after(call: Any, error: BaseException) -> Any:
    """A call that is made, and fails."""

    def made(*arguments: Any) -> None:
        call(*arguments)
        raise error

    return made


@pytest.mark.parametrize("undone", [False, True])
def test_a_cold_store_that_is_made_though_that_failed_is_in_no_durable_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undone: bool
) -> None:
    """RocksDB's manifest has it, and the sync of its directory fails; undone: it cannot be deleted again."""
    error = ColdStoreError("the disk is full")
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        store.get_variable("first", dim=4)
        store.flush()  # from now on cold stores are made at once
        database = inside(store).database
        if undone:
            monkeypatch.setattr(database, "drop", Mock(side_effect=error))
            monkeypatch.setattr(assembly, "storage_class", Mock(side_effect=MemoryError()))
        else:
            monkeypatch.setattr(database, "create", after(database.create, error))
        with pytest.raises(MemoryError if undone else Poisoned):
            store.get_variable("rows", dim=4)
        with pytest.raises(Poisoned, match="the disk is full"):
            store.flush()
    monkeypatch.undo()
    with kvemb.open(tmp_path / "store", memory_budget="8MiB") as store:
        assert list(store.variables) == ["first"]
        assert store.get_variable("rows", dim=4).size() == 0


def test_a_new_variable_after_a_checkpoint_that_failed_is_undone_and_can_be_made_again(tmp_path: Path) -> None:
    """The error of a checkpoint behind is raised by the flush that a new variable makes; the store itself is sound."""
    with kvemb.open(tmp_path / "store", memory_budget="8MiB", durability="write") as store:
        store.get_variable("first", dim=4).upsert([1], [[1.0] * 4])
        before = state_of(store)
        (tmp_path / "file").write_text("not a folder")
        store.checkpoint(tmp_path / "file" / "checkpoint", block=False)
        with pytest.raises(ColdStoreError):
            store.get_variable("rows", dim=4)
        assert state_of(store) == before
        store.get_variable("rows", dim=4).upsert([2], [[2.0] * 4])
        store.check()


@dataclass(frozen=True)
class Decaying(Adagrad):
    decay: float = 0.5


@dataclass(frozen=True)
class Tuned(kvemb.RocksDBCreator):
    depth: int = 1


@dataclass(frozen=True)
class Twos(kvemb.initializers.Ones):
    times: int = 2


def test_a_subclass_that_could_not_be_stored_is_refused(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    table = store.get_variable("table", dim=2, optimizer=Adagrad())
    for what, given in (("optimizer", Decaying()), ("kv_creator", Tuned()), ("initializer", Twos())):
        with pytest.raises(TypeError, match=what):
            store.get_variable("other", dim=2, **{what: given})
    with pytest.raises(TypeError, match=r"optimizer must be an Optimizer, got .*Decaying"):
        table.optimizer = Decaying()
    store.flush()
    assert list(store.variables) == ["table"]
