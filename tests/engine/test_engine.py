"""The inside of a store: its files while it is open and after, its budget, what a kill and a failure leave."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from programs import run_python

import kvemb
from kvemb.durability import layout
from kvemb.engine import engine
from kvemb.errors import Corruption, Poisoned
from kvemb.handle import inside
from kvemb.memory.rebalancer import Share
from tests.test_store import VALUES, fill


def test_calls_in_order_run_one_after_the_other_on_one_thread(store):
    ran = [inside(store).in_order(lambda at=at: (at, threading.current_thread().name)) for at in range(3)]
    assert [at for at, _ in ran] == [0, 1, 2]
    assert {name for _, name in ran} == {"kvemb-write_0"}
    with pytest.raises(ZeroDivisionError):
        inside(store).in_order(divmod, 1, 0)


def test_released_without_a_flush_it_forgets_what_came_after_the_last_point(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    users = fill(store)
    store.flush()
    users.upsert([1], np.full((1, 4), 9, np.float32))
    inside(store).release()
    assert not (store.path / "live").exists()
    assert open_store(store.path).variables["users"].lookup([1]).tolist() == VALUES[1:2].tolist()


def test_findings_name_the_variable_and_the_file(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store)
    store.flush()
    assert inside(store).findings(deep=True) == []
    inside(store).tables["users"].storage.size += 1
    assert [line.partition(":")[0] for line in inside(store).findings(deep=False)] == ["variable 'users'"]
    inside(store).tables["users"].storage.size -= 1


def test_a_closed_store_leaves_one_point_and_no_scratch(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store)
    for _ in range(3):
        store.flush()
    store.close()
    assert sorted(path.name for path in store.path.iterdir()) == ["CURRENT", "LOCK", "points"]
    assert len(list((store.path / "points").iterdir())) == 1


def test_a_point_that_was_being_made_is_ignored(open_store, tmp_path):
    store = open_store(tmp_path / "store")
    fill(store)
    store.close()
    current = (store.path / "CURRENT").read_text().strip()
    for name in (f"{int(current) + 1:06d}", ".000099.1.tmp"):
        (store.path / "points" / name).mkdir()
        (store.path / "points" / name / "junk").write_text("junk")
    (store.path / "CURRENT.tmp").write_text("")
    (store.path / "live").mkdir()
    (store.path / "live" / "CURRENT").write_text("junk")
    again = open_store(tmp_path / "store")
    assert again.variables["users"].size() == 1000
    again.flush()
    assert len(list((store.path / "points").iterdir())) == 1


@pytest.mark.slow
def test_after_a_kill_the_store_is_as_it_was_flushed(open_store, tmp_path):
    done = run_python(
        """
        import os, signal, sys
        import numpy as np
        import kvemb
        store = kvemb.open(sys.argv[1], memory_budget="8MiB")
        users = store.get_variable("users", dim=4, hot_rows=64, optimizer=kvemb.optimizers.Adagrad(0.5))
        users.upsert(np.arange(1000), np.arange(4000, dtype=np.float32).reshape(1000, 4))
        users.apply_gradients([1, 2], np.ones((2, 4), np.float32))
        np.savez(sys.argv[2], *users.export(with_scores=True))
        store.flush()
        # Enough for spills to reach the database; none of it may show through.
        for start in range(0, 200_000, 20_000):
            users.upsert(np.arange(start, start + 20_000), np.full((20_000, 4), -7, np.float32))
        users.remove(np.arange(0, 100_000, 3))
        store.get_variable("later", dim=2).upsert([1], np.ones((1, 2), np.float32))
        assert users.stats.cold_writes > 100_000
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path / "store",
        tmp_path / "expected.npz",
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    store = open_store(tmp_path / "store")
    assert list(store.variables) == ["users"]
    got = store.variables["users"].export(with_scores=True)
    expected = np.load(tmp_path / "expected.npz")
    for number, column in enumerate(got):
        np.testing.assert_array_equal(column, expected[f"arr_{number}"])


def test_a_flush_that_fails_poisons_the_store(open_store, tmp_path, monkeypatch, caplog):
    store = open_store(tmp_path / "store")
    users = fill(store)
    store.flush()
    users.upsert([1], np.full((1, 4), 9, np.float32))

    monkeypatch.setattr(layout, "set_current", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(Poisoned, match="No space left"):
        store.flush()
    monkeypatch.undo()
    assert "poisoned" in repr(store)
    assert users.lookup([1]).tolist() == [[9.0] * 4]
    with pytest.raises(Poisoned, match="No space left") as caught:
        users.upsert([1], VALUES[:1])
    assert isinstance(caught.value.__cause__, kvemb.errors.ColdStoreError)
    with pytest.raises(Poisoned):
        store.checkpoint(tmp_path / "checkpoint")
    store.close()
    store.close()
    (said,) = caplog.messages
    assert re.search(
        r"closed without a new durable point, because .* No space left .*; what changed after .*, of 2.*, is lost$",
        said,
    )
    assert open_store(tmp_path / "store").variables["users"].lookup([1]).tolist() == VALUES[1:2].tolist()


def test_a_poisoned_store_opens_no_variable_whose_memory_others_have(open_store, tmp_path):
    with open_store(tmp_path / "store") as store:
        fill(store)
    store = open_store(tmp_path / "store")
    others = Share(1, store.budget.free, 0)
    store.budget.reserve(others.held, "others")
    store.budget.join(others)
    store.state.poison(OSError(28, "No space left on device"))
    with pytest.raises(Poisoned, match="No space left"):  # not ValueError, after waiting
        store.get_variable("users", hot_rows=1000)


def test_no_thread_or_warning_is_left_by_a_store(open_store, tmp_path):
    before = set(threading.enumerate())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(3):
            store = open_store(tmp_path / f"store{number}")
            fill(store)
            store.close()
    left = [thread.name for thread in set(threading.enumerate()) - before]
    # The threads of kernels and of calls on many variables are the process's.
    assert [name for name in left if not name.startswith(("kvemb-cpu", "kvemb-variables"))] == []


@pytest.mark.parametrize("how", [{}, {"read_only": True}, {"follow": True}], ids=repr)
def test_a_store_that_is_opened_warm_has_what_was_hot_at_its_close(open_store, tmp_path, how):
    store = open_store(tmp_path / "store")
    table = fill(store)
    some = np.arange(0, 200, 7)
    table.lookup(some)
    with inside(table).storage.access.held():  # what the lookup left in flight goes hot first
        hot = inside(table).hot_tables.keys().tolist()
    store.close()
    for warm in (True, False):
        with kvemb.open(tmp_path / "store", warm=warm, memory_budget="8MiB", **how) as again:
            found = inside(again.variables["users"]).hot_tables.keys().tolist()
            assert sorted(found) == (sorted(hot) if warm else [])
            misses = again.stats.misses
            again.variables["users"].lookup(np.array(hot), touch=False)
            assert again.stats.misses == misses + (0 if warm else len(hot))


def test_a_checkpoint_is_opened_warm_and_a_missing_hot_set_is_damage(store, tmp_path):
    table = fill(store)
    hot = inside(table).hot_tables.keys().tolist()
    checkpoint = store.checkpoint(tmp_path / "checkpoint")
    with kvemb.open(checkpoint, read_only=True, warm=True, memory_budget="8MiB") as reader:
        assert sorted(inside(reader.variables["users"]).hot_tables.keys().tolist()) == sorted(hot)
    next((checkpoint.path / "hot").iterdir()).unlink()
    with pytest.raises(Corruption, match=r"hot.*is missing"):
        kvemb.open(checkpoint, read_only=True, warm=True, memory_budget="8MiB")


def test_a_follower_is_opened_warm_though_the_point_is_replaced_meanwhile(open_store, tmp_path, monkeypatch):
    store = open_store(tmp_path / "store")
    table = fill(store)
    hot = inside(table).hot_tables.keys().tolist()
    store.checkpoint(tmp_path / "one")
    real, turns = engine.read_hot, iter(range(100))

    def replaced(folder: Path, files: list[str]) -> Any:
        if next(turns) < 2:
            table.upsert([1], np.zeros((1, table.dim), np.float32))
            store.flush()
        return real(folder, files)

    monkeypatch.setattr(engine, "read_hot", replaced)
    with kvemb.open(tmp_path / "store", follow=True, warm=True, memory_budget="8MiB") as follower:
        assert next(turns) == 3
        assert sorted(inside(follower.variables["users"]).hot_tables.keys().tolist()) == sorted(hot)


@pytest.mark.parametrize("whose", ["its own", "of its owner"])
def test_a_point_that_is_replaced_while_it_is_checked_is_no_damage(open_store, tmp_path, monkeypatch, whose):
    store = open_store(tmp_path / "store")
    table = fill(store)
    store.flush()
    real, turns = engine.checkpoint_findings, iter(range(100))

    def replaced(*given: Any, **options: Any) -> Any:
        turn = next(turns)
        if turn < 2:
            table.upsert([1], np.zeros((1, table.dim), np.float32))
            store.flush()
        if turn == 1:
            raise FileNotFoundError("deleted while its size was asked")
        return real(*given, **options)

    monkeypatch.setattr(engine, "checkpoint_findings", replaced)
    with kvemb.open(tmp_path / "store", follow=True, memory_budget="8MiB") as follower:
        (store if whose == "its own" else follower).check()
        assert next(turns) == 3
