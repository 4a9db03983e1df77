"""Stores: opening, locking, durability, checkpoints, and the default store."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import run_python

import kvemb
from kvemb import GraphKeys
from kvemb.errors import CheckpointNotFound, Closed, Corruption, Locked, ReadOnly, StoreNotFound

KEYS = np.arange(1000)
VALUES = np.arange(4000, dtype=np.float32).reshape(1000, 4)


def contents(path: Path) -> dict[str, bytes | None]:
    """Every file below path and its bytes, RocksDB's logs of events aside."""
    files = {file for file in path.rglob("*") if not file.name.startswith("LOG")}
    return {str(file.relative_to(path)): file.read_bytes() if file.is_file() else None for file in files}


def fill(store: kvemb.Store, name: str = "users") -> kvemb.Variable:
    variable = store.get_variable(name, dim=4, hot_rows=64, optimizer=kvemb.optimizers.Adagrad(0.5))
    variable.upsert(KEYS, VALUES)
    return variable


# Opening.


def test_rows_are_there_when_the_store_is_opened_again(open_store, tmp_path):
    store = open_store(tmp_path / "a" / "deep" / "store")
    assert store.path == tmp_path / "a" / "deep" / "store"
    users = fill(store)
    users.apply_gradients(KEYS[:10], np.ones((10, 4), np.float32))
    before = users.export(with_slots=True, with_scores=True)
    store.close()
    again = open_store(tmp_path / "a" / "deep" / "store")
    assert list(again.variables) == ["users"]
    users = again.variables["users"]
    after = users.export(with_slots=True, with_scores=True)
    np.testing.assert_equal(after, before)
    assert users.size() == 1000
    assert users.optimizer == kvemb.optimizers.Adagrad(0.5)


def test_an_empty_directory_becomes_a_store(open_store, tmp_path):
    (tmp_path / "empty").mkdir()
    open_store(tmp_path / "empty").close()
    assert open_store(str(tmp_path / "empty"), read_only=True).variables == {}


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_not_a_store_is_refused_and_left_alone(tmp_path, read_only):
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo.jpg").write_text("picture")
    before = contents(tmp_path)
    for name in ("file", "folder", *["missing"] * read_only):
        with pytest.raises(StoreNotFound, match=name):
            kvemb.open(tmp_path / name, read_only=read_only)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("path", [None, 7, b"bytes"])
def test_a_path_is_text_or_a_path(path):
    with pytest.raises(TypeError):
        kvemb.open(path)


# Locking.


def test_a_second_opener_of_this_process_is_told_at_once(store, monkeypatch):
    fill(store)
    opener, sleep = threading.get_ident(), time.sleep

    def never(seconds: float) -> None:
        assert threading.get_ident() != opener, "it waits"
        sleep(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", never)
        with pytest.raises(Locked, match=r"open for writing already, by this process.*a follower can read it"):
            kvemb.open(store.path)
    assert store.variables["users"].size() == 1000


@pytest.mark.slow
def test_another_process_is_told_at_once(store):
    done = run_python(
        """
        import sys, time
        import kvemb
        time.sleep = None  # it does not wait
        try:
            kvemb.open(sys.argv[1])
        except kvemb.errors.Locked as error:
            print("locked:", error)
        """,
        store.path,
    )
    assert done.stdout.startswith(f"locked: the store {store.path} is open"), done.stderr


def test_the_lock_is_free_after_close_and_after_a_failure(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    store.close()
    (tmp_path / "store" / "CURRENT").write_text("nonsense")
    for _ in range(2):
        with pytest.raises(Corruption, match="CURRENT is damaged"):
            kvemb.open(tmp_path / "store")


# Read-only.


def test_a_reader_sees_the_last_flush_while_the_owner_works(open_store, store):
    users = fill(store)
    store.flush()
    users.upsert([0, 5000], np.full((2, 4), -1, np.float32))
    reader = open_store(store.path, read_only=True)
    rows, exists = reader.variables["users"].lookup([0, 1, 5000], return_exists=True)
    assert rows[:2].tolist() == VALUES[:2].tolist()
    assert exists.tolist() == [True, True, False]
    store.flush()
    assert reader.variables["users"].size() == 1000
    np.testing.assert_array_equal(reader.variables["users"].lookup(KEYS), VALUES)
    assert open_store(store.path, read_only=True).variables["users"].size() == 1001


@pytest.mark.parametrize("kind", ["store", "checkpoint"])
def test_reading_changes_nothing(open_store, tmp_path, kind):
    store = open_store(tmp_path / "store")
    fill(store)
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    before = contents(tmp_path)
    reader = open_store(tmp_path / kind, read_only=True)
    users = reader.variables["users"]
    scores = users.export(with_scores=True)[2]
    for _ in range(3):
        np.testing.assert_array_equal(users.lookup(KEYS), VALUES)
    users.prefetch(KEYS)
    assert users.export(with_scores=True)[2].tolist() == scores.tolist(), "a reader's uses do not count"
    for change in (
        *(lambda: users.upsert([1], VALUES[:1]), lambda: users.remove([1]), users.clear, reader.flush),
        *(lambda: users.apply_gradients([1], VALUES[:1]), lambda: users.accum([1], VALUES[:1], VALUES[:1], [True])),
        *(lambda: reader.checkpoint(tmp_path / "other"), lambda: reader.get_variable("new", dim=2)),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            change()
    with pytest.raises(ReadOnly, match=r"the read-only store .* has no variable 'user'; it has users$"):
        reader.get_variable("user")
    reader.close()
    assert contents(tmp_path) == before


# After close.


def test_a_closed_store_refuses_everything(store, tmp_path):
    users = fill(store)
    batches = users.export_batches(10)
    store.close()
    store.close()
    for use in (
        *(lambda: users.lookup([1]), lambda: users.upsert([1], VALUES[:1]), lambda: users.remove([1]), users.clear),
        *(users.size, users.export, lambda: users.prefetch([1]), lambda: users.apply_gradients([1], VALUES[:1])),
        *(store.flush, lambda: store.checkpoint(tmp_path / "c"), lambda: store.get_variable("a"), store.__enter__),
        *(lambda: users.accum([1], VALUES[:1], VALUES[:1], [True]), lambda: list(batches)),
    ):
        with pytest.raises(Closed, match="closed"):
            use()
    assert repr(store) == f"<kvemb.Store {store.path} closed, budget 8.0 MiB>"
    assert repr(users) == "<kvemb.Variable 'users' int64 -> 4 x float32, closed>"
    assert not (tmp_path / "c").exists()


def test_what_a_closed_store_has_done_can_still_be_read(store):
    users = fill(store)
    users.lookup(KEYS)
    store.flush()
    before = users.stats
    assert before.bytes_cold > 0
    store.close()
    for after in (users.stats, store.stats):
        assert (after.rows, after.hits, after.misses) == (1000, before.hits, before.misses)
        assert after.bytes_cold > 0
        assert " 0 B cold" not in str(after)


def test_a_closed_store_opens_no_variable(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "open")
    fill(store, "shut")
    store.close()
    store = open_store(tmp_path / "store")
    variables = store.variables
    assert variables["open"].size() == 1000
    store.close()
    for ask in (
        *(lambda: variables["open"], lambda: variables["shut"], lambda: variables["none"], lambda: "open" in variables),
        *(lambda: list(variables), lambda: store.variables["open"], lambda: len(store.variables)),
    ):
        with pytest.raises(Closed, match="closed"):
            ask()


# Checkpoints.


def test_a_checkpoint_is_restored_as_it_was(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    users = fill(store)
    empty = store.get_variable("empty", dim=2, value_dtype="int8")
    before = users.export(with_slots=True, with_scores=True)
    assert store.checkpoint(tmp_path / "new" / "checkpoint").path == tmp_path / "new" / "checkpoint"
    users.upsert(KEYS, -VALUES)
    users.remove(KEYS[:500])
    kept = contents(tmp_path / "new")
    with kvemb.restore(tmp_path / "new" / "checkpoint", tmp_path / "copy", memory_budget="8MiB") as copy:
        assert list(copy.variables) == ["empty", "users"]
        np.testing.assert_equal(copy.variables["users"].export(with_slots=True, with_scores=True), before)
        assert copy.variables["empty"].value_dtype == empty.value_dtype
        copy.variables["users"].clear()
        copy.flush()
    assert contents(tmp_path / "new") == kept, "a store that was restored does not touch its checkpoint"
    assert users.size() == 500
    reader = open_store(tmp_path / "new" / "checkpoint", read_only=True)
    np.testing.assert_equal(reader.variables["users"].export(with_slots=True, with_scores=True), before)


def test_variables_may_stay_out_of_checkpoints(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "kept")
    store.get_variable("left out", dim=4, checkpoint=False).upsert(KEYS, VALUES)
    store.get_variable("memory", dim=4, kv_creator=kvemb.MemoryCreator()).upsert(KEYS, VALUES)
    store.checkpoint(tmp_path / "checkpoint")
    size = sum(file.stat().st_size for file in (tmp_path / "checkpoint").rglob("*.sst"))
    assert size < 3 * 1000 * (17 + 8 + 32)
    reader = open_store(tmp_path / "checkpoint", read_only=True)
    assert list(reader.variables) == ["kept"]
    np.testing.assert_array_equal(reader.variables["kept"].lookup(KEYS), VALUES)
    store.close()
    again = open_store(tmp_path / "store")
    assert list(again.variables) == ["kept", "left out"]
    np.testing.assert_array_equal(again.variables["left out"].lookup(KEYS), VALUES)


def test_a_checkpoint_is_not_opened_for_writing(store, tmp_path):
    store.checkpoint(tmp_path / "checkpoint")
    before = contents(tmp_path / "checkpoint")
    with pytest.raises(StoreNotFound, match="is a checkpoint, not a store"):
        kvemb.open(tmp_path / "checkpoint")
    assert contents(tmp_path / "checkpoint") == before


def test_nothing_is_overwritten(open_store, store, tmp_path):
    store.checkpoint(tmp_path / "checkpoint")
    (tmp_path / "file").write_text("text")
    for taken in ("checkpoint", "file", "store"):
        with pytest.raises(FileExistsError, match=taken):
            store.checkpoint(tmp_path / taken)
    for taken in ("checkpoint", "file", "store"):
        with pytest.raises(FileExistsError, match=taken):
            kvemb.restore(tmp_path / "checkpoint", tmp_path / taken)
    (tmp_path / "empty").mkdir()
    kvemb.restore(tmp_path / "checkpoint", tmp_path / "empty").close()


def test_a_checkpoint_that_fails_is_not_there(store, tmp_path):
    users = fill(store)
    (tmp_path / "file").write_text("text")
    with pytest.raises(kvemb.errors.ColdStoreError, match=r"cannot write .*file"):
        store.checkpoint(tmp_path / "file" / "checkpoint")
    users.upsert([1], VALUES[:1])
    store.checkpoint(tmp_path / "checkpoint")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "file", "store"]


def test_what_is_not_a_checkpoint_is_not_restored(store, tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("missing", "folder", "store"):
        with pytest.raises(CheckpointNotFound, match=name):
            kvemb.restore(tmp_path / name, tmp_path / "copy")
    store.checkpoint(tmp_path / "checkpoint")
    for budget, error in (("1 parsec", ValueError), (5, ValueError), (None, TypeError)):
        with pytest.raises(error, match="memory_budget"):
            kvemb.restore(tmp_path / "checkpoint", tmp_path / "copy", memory_budget=budget)
    assert not (tmp_path / "copy").exists()


# Variables of a store.


def test_variables_are_opened_when_they_are_asked_for(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store, "b")
    fill(store, "a/x")
    assert list(store.variables) == ["a/x", "b"]
    assert len(store.variables) == 2
    assert store.variables["b"] is store.get_variable("b", dim=4)
    with pytest.raises(KeyError):
        store.variables["c"]
    store.close()
    again = open_store(tmp_path / "store")
    assert again.get_collection(GraphKeys.GLOBAL_VARIABLES) == []
    assert repr(again.variables) == "<variables a/x, b>"
    assert "b: 1,000 rows of dim 4 float32, not opened yet" in repr(again)
    assert "b" in again.variables
    assert "c" not in again.variables
    assert again.get_collection(GraphKeys.GLOBAL_VARIABLES) == [], "asking for a name opens nothing"
    assert again.variables["b"].size() == 1000
    assert again.get_collection(GraphKeys.GLOBAL_VARIABLES) == [again.variables["b"]]


def test_stats_are_those_of_all_variables(store):
    fill(store, "a").lookup(KEYS[:10])
    fill(store, "b").lookup(KEYS[:20])
    assert store.stats.rows == 2000
    assert store.stats.hits + store.stats.misses == 30


def test_a_store_says_what_it_holds_and_how_it_is_open(open_store, store):
    fill(store)
    text = repr(store)
    assert text.startswith(f"<kvemb.Store {store.path} open, budget 8.0 MiB>\n  <kvemb.Variable 'users' int64 -> 4 x ")
    assert "1,000 rows" in text
    store.flush()
    for how, state in (({"follow": True}, "following"), ({"read_only": True}, "read-only")):
        reader = open_store(store.path, **how)
        assert repr(reader) == (
            f"<kvemb.Store {store.path} {state}, budget 8.0 MiB>\n  users: 1,000 rows of dim 4 float32, not opened yet"
        )
        reader.close()
        assert repr(reader) == f"<kvemb.Store {store.path} closed, budget 8.0 MiB>"


# The default store.


def test_an_error_inside_with_closes_the_store(no_default, tmp_path):
    store = kvemb.open(tmp_path / "store")
    store.get_variable("users", dim=1).upsert([1], [[2.0]])
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    assert store.state.closed
    with kvemb.open(tmp_path / "store") as store:
        assert store.variables["users"].size() == 1


def test_a_store_stays_where_it_was_opened_wherever_the_process_goes(monkeypatch, open_store, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with open_store(Path("store")) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        store.get_variable("table").upsert([1], [[1.0]])
        store.flush()
        store.checkpoint("checkpoint")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "store"]
    assert kvemb.Checkpoint(tmp_path / "elsewhere" / "checkpoint").variables["table"].rows == 1


def test_a_store_knows_its_identity_and_its_last_point(store, tmp_path):
    first = store.point
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    assert store.point > first
    with kvemb.open(store.path, read_only=True) as reader:
        assert (reader.id, reader.point) == (store.id, store.point)
    with kvemb.restore(checkpoint, tmp_path / "restored", memory_budget="4MiB") as restored:
        assert (restored.id, restored.point) == (store.id, store.point)
    with kvemb.open(tmp_path / "other", memory_budget="4MiB") as other:
        assert other.id != store.id
