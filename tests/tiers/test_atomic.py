"""A call that fails half-way loses no row and miscounts none, whatever it is that fails: a user's code, or memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.backends import cpu
from kvemb.handle import inside
from kvemb.tiers import snapshot

KEYS = np.arange(80)
Opener = Callable[..., kvemb.Store]


def filled(store: kvemb.Store, **arguments: Any) -> kvemb.Variable:
    """A table of 80 rows of 2.0, 32 of them hot and the newest of most others waiting to be spilled."""
    variable = store.get_variable("table", dim=1, hot_rows=32, optimizer=kvemb.optimizers.SGD(1.0), **arguments)
    for value in (1, 2):
        variable.upsert(KEYS, np.full((80, 1), value, np.float32))
    return variable


CALLS: dict[str, Callable[[kvemb.Variable], object]] = {
    "lookup": lambda variable: variable.lookup(KEYS[:20]),
    "untouched": lambda variable: variable.lookup(KEYS[:20], touch=False),
    "upsert": lambda variable: variable.upsert(KEYS[:20], np.full((20, 1), 2, np.float32)),
    "apply_gradients": lambda variable: variable.apply_gradients(KEYS[:20], np.zeros((20, 1), np.float32)),
    "accum": lambda variable: variable.accum(*(KEYS[:20], *np.zeros((2, 20, 1), np.float32), np.ones(20, bool))),
    "new": lambda variable: variable.apply_gradients(KEYS[:20] + 1000, np.zeros((20, 1), np.float32)),
}


def check(variable: kvemb.Variable, store: kvemb.Store) -> None:
    """Every row is there with its value, and all are counted."""
    rows, exists = variable.lookup(KEYS, return_exists=True)
    assert exists.all()
    assert (rows == 2).all()
    assert variable.size() == len(variable.export()[0])
    store.check()


@pytest.mark.parametrize("call", CALLS)
def test_a_partitioner_that_raises_at_any_time(store: kvemb.Store, call: str) -> None:
    calls_left = [0]

    def partitioner(keys: Any, count: int) -> Any:
        calls_left[0] -= 1
        if calls_left[0] == 0:
            raise RuntimeError("a partitioner's own error")
        return keys % count

    variable = filled(store, devices=["cpu"] * 2, partitioner=partitioner)
    for nth in range(1, 9):
        calls_left[0] = nth
        with suppress(RuntimeError):
            CALLS[call](variable)
        calls_left[0] = 0
        assert store.state.cause is None
        check(variable, store)
        variable.remove(KEYS[:20] + 1000)
        variable.upsert(KEYS, np.full((80, 1), 2, np.float32))


def short_of_memory(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int = 1) -> None:
    """Let one call of owner.name fail."""
    real, calls = getattr(owner, name), [0]

    def failing(*arguments: Any, **others: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth:
            raise MemoryError("no memory")
        return real(*arguments, **others)

    monkeypatch.setattr(owner, name, failing)


def check_nothing_is_wrong(store: kvemb.Store, open_store: Opener) -> None:
    """The store refuses to go on, and opens again as it was at its last flush: KEYS, all of value 2."""
    with pytest.raises(kvemb.errors.Poisoned, match="no memory"):
        store.variables["table"].upsert(KEYS[:1], np.full((1, 1), 2, np.float32))
    store.close()
    again = open_store(store.path)
    check(again.variables["table"], again)
    assert again.variables["table"].size() == len(KEYS)


@pytest.mark.independent
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("devices", "nth"), [(1, 1), (2, 2)])
def test_memory_that_is_short_while_rows_go_hot(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, devices: int, nth: int
) -> None:
    store = open_store(tmp_path / "store")
    variable = filled(store, devices=["cpu"] * devices)
    store.flush()
    with monkeypatch.context() as patched:
        short_of_memory(patched, cpu, "RowBlock", nth)
        if call == "lookup":  # its rows land at the next call
            CALLS[call](variable)
            assert store.state.cause is None
            with inside(variable).storage.access.held():
                pass
            assert isinstance(store.state.cause, MemoryError)
        else:
            with pytest.raises(MemoryError):
                CALLS[call](variable)
    assert (variable.lookup(KEYS, touch=False) == 2).all()
    check_nothing_is_wrong(store, open_store)


def test_memory_that_is_short_for_what_a_checkpoint_keeps_fails_the_checkpoint(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "store")
    variable = filled(store)
    store.flush()
    variable.upsert(KEYS, np.full((80, 1), 3, np.float32))
    with monkeypatch.context() as patched:
        begin = snapshot.DirtySnapshot.write
        gate = threading.Event()

        def later(self: Any, *arguments: Any) -> Any:
            assert gate.wait(600)
            return begin(self, *arguments)

        patched.setattr(snapshot.DirtySnapshot, "write", later)
        pending = store.checkpoint(tmp_path / "checkpoint", block=False)
        short_of_memory(patched, snapshot.DirtySnapshot, "_copy")
        with pytest.raises(MemoryError):
            variable.upsert(np.arange(1000, 1100), np.ones((100, 1), np.float32))
        gate.set()
        with pytest.raises(kvemb.errors.Poisoned):
            pending.result()
    assert not (tmp_path / "checkpoint").exists()
    check_nothing_is_wrong(store, open_store)
