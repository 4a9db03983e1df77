"""A call that fails half-way loses no row and miscounts none, whatever it is that fails: a user's code, or memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvemb
from kvemb.backends import cpu

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
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_partitioner_that_raises_at_any_time(store: kvemb.Store, call: str, nth: int) -> None:
    calls_left = [0]

    def partitioner(keys: Any, count: int) -> Any:
        calls_left[0] -= 1
        if calls_left[0] == 0:
            raise RuntimeError("a partitioner's own error")
        return keys % count

    variable = filled(store, devices=["cpu"] * 2, partitioner=partitioner)
    calls_left[0] = nth
    with suppress(RuntimeError):
        CALLS[call](variable)
    calls_left[0] = 0
    assert store.health.cause is None
    check(variable, store)


@pytest.mark.parametrize("call", CALLS)
def test_memory_that_is_short_while_rows_go_hot(store: kvemb.Store, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    variable = filled(store)

    def none_left(*shape: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(cpu, "RowBlock", none_left)
        with pytest.raises(MemoryError):
            CALLS[call](variable)
    assert store.health.cause is None
    check(variable, store)


def test_memory_that_is_short_at_the_second_device_refuses_to_go_on(
    open_store: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first device took cannot be taken back: nothing of it becomes durable."""
    store = open_store(tmp_path / "store")
    variable = filled(store, devices=["cpu"] * 2)
    store.flush()
    real, calls = cpu.RowBlock, []

    def once(*shape: Any) -> Any:
        calls.append(shape)
        if len(calls) == 2:
            raise MemoryError("no memory")
        return real(*shape)

    with monkeypatch.context() as patched:
        patched.setattr(cpu, "RowBlock", once)
        with pytest.raises(MemoryError):
            CALLS["new"](variable)
    with pytest.raises(kvemb.errors.Poisoned, match="no memory"):
        variable.upsert(KEYS[:1], np.zeros((1, 1), np.float32))
    store.close()
    again = open_store(tmp_path / "store")
    check(again.variables["table"], again)
