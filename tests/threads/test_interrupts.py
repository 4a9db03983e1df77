"""Handlers of signals at any instant leave every acknowledged row as it was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python
from quick import quick

import kvemb
from kvemb.backends import cpu
from kvemb.durability.checkpoint import Checkpoint
from kvemb.durability.point_writer import PointWriter
from kvemb.limits import Limits
from kvemb.threads import interrupts
from kvemb.threads.interrupts import result_of, uninterrupted, wait_for
from tests.histories import small_spill

KEYS, DIM, BATCH, ROUNDS = 600, 4, 40, 25


def interrupted(steps: list[str]) -> None:
    with uninterrupted():
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("inner")
        steps.append("outer")


def test_ctrl_c_waits_for_the_end_of_the_outermost_block() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(steps)
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_is_called_once_after_the_block_and_stays() -> None:
    caught: list[int] = []

    def own(number: int, frame: object) -> None:
        caught.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            assert caught == []
        assert caught == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


class Raised(Exception):
    """What a handler raises."""


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """Handlers of four signals, which list the signals; those before are set again."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM)
    caught: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in numbers}
    yield caught
    for number, handler in before.items():
        signal.signal(number, handler)


def test_every_signal_waits_for_the_end_of_the_block(caught: list[int]) -> None:
    with uninterrupted():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM):
            os.kill(os.getpid(), number)
        assert caught == []
    assert sorted(caught) == sorted([signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM])


def test_what_handlers_raise_keeps_no_other_handler_from_running(caught: list[int]) -> None:
    def refuse(number: int, frame: object) -> None:
        caught.append(number)
        raise Raised(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, refuse)
    with pytest.raises(Raised), uninterrupted():  # noqa: PT012
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), number)
    assert sorted(caught) == sorted([signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])


def test_a_handler_that_is_set_in_a_block_waits_too_and_users_see_their_own(caught: list[int]) -> None:
    def own(number: int, frame: object) -> None:
        caught.append(-number)

    with uninterrupted():
        before = signal.signal(signal.SIGUSR1, own)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert caught == []
        assert signal.getsignal(signal.SIGUSR1) is own
    assert caught == [-signal.SIGUSR1]
    assert signal.signal(signal.SIGUSR1, before) is own


def test_a_signal_that_is_ignored_before_the_block_ends_is_not_delivered(caught: list[int]) -> None:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert caught == []


def test_a_handler_that_comes_as_a_block_ends_may_run_those_that_were_due(caught: list[int]) -> None:
    """Its own block ends first."""

    class Due(set[int]):
        def pop(self) -> int:
            self.clear()
            return super().pop()

    handlers = interrupts._handlers
    before, handlers.due = handlers.due, Due([signal.SIGUSR1])
    try:
        handlers.run_due()
    finally:
        handlers.due = before
    assert caught == []


@pytest.mark.slow
def test_where_the_module_signal_works_differently_each_block_looks_for_handlers() -> None:
    code = """
        import os
        import _signal, signal
        # A module of its own functions, as a later Python may have it.
        for name in ("signal", "getsignal"):
            setattr(signal, name, getattr(_signal, name))
        from kvemb.threads.interrupts import uninterrupted

        with uninterrupted():
            pass
        signal.signal(signal.SIGTERM, lambda number, frame: print("handled"))
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            print("in the block")
    """
    assert run_python(code, check=True).stdout == "in the block\nhandled\n"


def test_a_block_that_an_exception_of_another_thread_left_open_ends_with_its_object(caught: list[int]) -> None:
    block = uninterrupted()
    block.__enter__()
    os.kill(os.getpid(), signal.SIGUSR1)
    del block
    with uninterrupted():
        assert caught == []
    assert caught == [signal.SIGUSR1]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_no_function_handles_it_nothing_is_changed(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is handler
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


ENDING = """
    import os, signal, threading
    from kvemb.threads.pool import Threads

    real = threading.Thread.start
    threading.Thread.start = lambda thread: (real(thread), os.kill(os.getpid(), signal.SIGINT))[0]
    pool, done = Threads(1), []
    try:
        pool.submit(done.append, 1)
    except KeyboardInterrupt:
        threading.Thread.start = real
        pool.submit(done.append, 2).result(60)
        print(done)
"""


@pytest.mark.slow
def test_a_pool_whose_first_thread_began_at_ctrl_c_works_and_lets_the_program_end() -> None:
    assert run_python(ENDING, check=True).stdout == "[1, 2]\n"


def test_every_pool_is_one_that_defers_ctrl_c() -> None:
    folders = [Path(str(each.__file__)).parent for each in (kvemb, cpu)]
    named = [path.name for each in folders for path in each.rglob("*.py") if "ThreadPoolExecutor" in path.read_text()]
    assert named == []


def test_other_threads_are_left_alone() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


class Writer:
    """Writes versions of random rows until it is interrupted, and knows which were acknowledged."""

    def __init__(self, var: kvemb.Variable, chance: np.random.Generator) -> None:
        self.var, self.chance = var, chance
        self.acknowledged, self.version = np.zeros(KEYS), 0
        self.writing = np.empty(0, np.int64)

    def run(self, timer: threading.Timer) -> None:
        timer.start()  # here: on a busy machine this thread may next run after the signal
        while True:
            self.version += 1
            self.writing = self.chance.choice(KEYS, BATCH, replace=False)
            self.var.upsert(self.writing, np.full((BATCH, DIM), self.version, np.float32))
            self.acknowledged[self.writing] = self.version
            self.var.lookup(self.chance.choice(KEYS, BATCH))


@pytest.mark.parametrize("seed", quick(range(ROUNDS), 6))
def test_no_acknowledged_row_is_lost_to_ctrl_c(seed: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(seed)
    small = Limits(**small_spill(32))
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", limits=small) as store:
        var = store.get_variable("rows", dim=DIM, hot_rows=32, kv_creator=kvemb.MemoryCreator())
        var.upsert(np.arange(KEYS), np.zeros((KEYS, DIM), np.float32))
        writer = Writer(var, chance)
        timer = threading.Timer(0.01 + 0.04 * chance.random(), os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            writer.run(timer)
        timer.join()
        rows, exists = var.lookup(np.arange(KEYS), return_exists=True, touch=False)
        assert exists.all()
        assert var.size() == KEYS
        assert (rows == rows[:, :1]).all()
        changed = rows[:, 0] != writer.acknowledged
        changed[writer.writing] &= rows[writer.writing, 0] != writer.version
        assert not changed.any()


class Interrupting(threading.Condition):
    """The condition of an event or a future, which receives Ctrl-C just after it has taken its lock."""

    def __enter__(self) -> bool:
        taken = super().__enter__()
        if threading.current_thread() is threading.main_thread():
            self.__class__ = threading.Condition  # once
            os.kill(os.getpid(), signal.SIGINT)
        return taken


def test_ctrl_c_while_an_event_or_a_future_takes_its_lock_leaves_it_free() -> None:
    event, future = threading.Event(), Future[int]()
    event._cond.__class__ = future._condition.__class__ = Interrupting  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        wait_for(event)
    with pytest.raises(KeyboardInterrupt):
        result_of(future)
    threading.Timer(0.05, event.set).start()
    threading.Timer(0.05, future.set_result, [7]).start()
    wait_for(event)
    assert result_of(future) == 7


def test_a_result_is_waited_for_no_longer_than_asked() -> None:
    future: Future[int] = Future()
    with pytest.raises(TimeoutError, match="not done after"):
        result_of(future, 0.01)
    future.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        result_of(future)


def begun_while_ctrl_c_comes(monkeypatch: pytest.MonkeyPatch, begun: threading.Event, go_on: threading.Event) -> None:
    """Make the next durable point wait for go_on while it is written; Ctrl-C arrives then."""
    write = PointWriter.write

    def slowly(writer: PointWriter) -> Checkpoint | None:
        monkeypatch.setattr(PointWriter, "write", write)
        begun.set()
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)
        return write(writer)

    monkeypatch.setattr(PointWriter, "write", slowly)


@pytest.mark.slow
def test_a_point_waits_for_the_one_before_however_often_ctrl_c_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with kvemb.open(tmp_path / "store", memory_budget="4MiB", durability="write") as store:
        var = store.get_variable("rows", dim=DIM)
        var.upsert(np.arange(KEYS), np.zeros((KEYS, DIM), np.float32))
        begun_while_ctrl_c_comes(monkeypatch, begun, go_on)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
        var.upsert(np.arange(KEYS), np.ones((KEYS, DIM), np.float32))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            store.flush()
        threading.Timer(0.2, go_on.set).start()
        store.flush()
        store.close(flush=False)
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as again:
        assert (again.variables["rows"].lookup(np.arange(KEYS)) == 1).all()


def test_a_snapshot_that_ctrl_c_follows_at_once_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_snapshots = PointWriter.take_snapshots

    def interrupted(writer: PointWriter, *arguments: Any) -> None:
        take_snapshots(writer, *arguments)
        os.kill(os.getpid(), signal.SIGINT)

    store = kvemb.open(tmp_path / "store", memory_budget="4MiB")
    var = store.get_variable("rows", dim=DIM)
    var.upsert(np.arange(KEYS), np.ones((KEYS, DIM), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(PointWriter, "take_snapshots", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    var.remove([0])
    keys: list[int] = []
    scan = threading.Thread(target=lambda: keys.extend(var.export()[0].tolist()), daemon=True)
    scan.start()
    scan.join(60)  # it waits for the end of the snapshot
    assert keys == list(range(1, KEYS))
    with monkeypatch.context() as patch:
        patch.setattr(PointWriter, "take_snapshots", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    with kvemb.open(tmp_path / "store", memory_budget="4MiB") as again:
        assert again.variables["rows"].size() == KEYS - 1
