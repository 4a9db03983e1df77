"""Many threads on one table with next to no hot rows: no update lost, no row torn, no call stuck, no row miscounted."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays_on_device import OnGpu
from cuda_devices import device_of

import kvemb
from kvemb import registry
from kvemb.handle import inside
from kvemb.rows.block import RowBlock
from tests.histories import small_spill

THREADS = 8
ROUNDS = 7
DIM = 6
STUCK_AFTER_SECONDS = 600

# What a key is used for, so that the end is known exactly.
COUNTERS = np.arange(0, 1000)  # there from the start; every thread adds to them
BORN = np.arange(1000, 1400)  # missing at first; every thread trains them
FIRST_WINS = np.arange(1400, 1600)  # missing at first; every thread inserts them, if it is the first
STAMPED = np.arange(1600, 2400)  # every thread writes rows of one number
CHURNED = np.arange(2400, 3200)  # a thread inserts and removes its own eighth
HOT_ROWS = 32


# Small piles and chunks, so that rows move all the time.
pytestmark = pytest.mark.limits(**small_spill(48), call_rows=100)


@pytest.fixture(autouse=True)
def _restless() -> Iterator[None]:
    """Threads take turns often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


def run_all(works: list[Callable[[], None]]) -> None:
    """Run each in a thread; fail when one fails, or does not end."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STUCK_AFTER_SECONDS)
        if thread.is_alive():
            faulthandler.dump_traceback()
            pytest.fail("a thread is stuck")
    if failures:
        raise failures[0]


def full(number: float, count: int) -> Any:
    """Rows of one number."""
    return np.full((count, DIM), number, np.float32)


def assert_whole(rows: Any) -> None:
    """No row holds parts of two writes."""
    assert (rows == rows[:, :1]).all()


class Worker:
    """One thread's share, and its own account of what it did."""

    def __init__(self, number: int, variable: kvemb.Variable, rounds: int) -> None:
        self.number, self.variable, self.rounds = number, variable, rounds
        self.chance = np.random.default_rng(number)
        self.added = np.zeros(len(COUNTERS))
        self.trained = np.zeros(len(BORN))
        self.used = np.zeros(len(COUNTERS))
        self.mine = CHURNED[number == CHURNED % THREADS]
        self.kept = np.zeros(len(self.mine), np.bool_)

    def work(self) -> None:
        """Do some of everything, round after round."""
        for turn in range(self.rounds):
            for act in self.chance.permutation(self.acts):
                act(turn)

    @property
    def acts(self) -> list[Callable[[int], None]]:
        """Some of everything."""
        return [self.add, self.train, self.step, self.read, self.stamp, self.churn, self.insert]

    def _pick(self, keys: Any, count: int) -> Any:
        return self.chance.choice(keys, count)

    def add(self, turn: int) -> None:
        keys = self._pick(COUNTERS, 150)
        if turn % 2:
            self.variable.prefetch(keys, after_lookup=turn % 4 == 1)
        old = self.variable.lookup(keys, touch=False)
        assert_whole(old)
        self.variable.accum(keys, old, old + 1, np.ones(len(keys), np.bool_))
        np.add.at(self.added, keys, 1)

    def train(self, turn: int) -> None:
        keys = self._pick(COUNTERS, 60)
        self.variable.apply_gradients(keys, full(-1, len(keys)))
        np.add.at(self.added, keys, 1)
        keys = self._pick(BORN, 60)
        self.variable.apply_gradients(keys, full(-1, len(keys)))
        np.add.at(self.trained, keys - BORN[0], 1)

    def step(self, turn: int) -> None:
        """A step of training: uses are recorded by the lookup, and rows changed by the update."""
        for keys in np.split(np.unique(self._pick(COUNTERS, 90)), [40]):
            rows = self.variable.lookup(keys)
            assert_whole(rows)
            if turn % 3 == 0:
                self.variable.prefetch(self._pick(COUNTERS, 50), after_lookup=turn % 2 == 0)
            self.variable.apply_gradients(keys, full(-1, len(keys)))
            self.added[keys] += 1
            self.used[keys] += 1

    def read(self, turn: int) -> None:
        keys = self._pick(COUNTERS, 200)
        rows, exists = self.variable.lookup(keys, return_exists=True)
        assert exists.all()
        assert_whole(rows)
        np.add.at(self.used, keys, 1)
        self.variable.prefetch(self._pick(STAMPED, 100), after_lookup=turn % 2 == 0)
        assert_whole(self.variable.lookup(self._pick(STAMPED, 200)))

    def stamp(self, turn: int) -> None:
        keys = self._pick(STAMPED, 100)
        self.variable.upsert(keys, full(1000 * turn + self.number, len(keys)))

    def churn(self, turn: int) -> None:
        for keep in (True, False):
            chosen = self.chance.integers(0, len(self.mine), 30)
            if keep:
                self.variable.upsert(self.mine[chosen], full(turn, len(chosen)))
            else:
                self.variable.remove(self.mine[chosen])
            self.kept[chosen] = keep
        rows, exists = self.variable.lookup(self.mine, return_exists=True)
        np.testing.assert_array_equal(exists, self.kept)
        assert_whole(rows)

    def insert(self, turn: int) -> None:
        keys = self._pick(FIRST_WINS, 20)
        absent = np.zeros(len(keys), np.bool_)
        self.variable.accum(keys, full(0, len(keys)), full(self.number + 1, len(keys)), absent)
        assert_whole(self.variable.lookup(keys))


def look_at_all(store: kvemb.Store, variable: kvemb.Variable) -> None:
    """Everything that looks at the whole table."""
    store.flush()
    keys, rows = variable.export()
    assert (np.diff(keys) > 0).all()
    assert np.isin(COUNTERS, keys).all()
    assert_whole(rows)
    for keys, rows in variable.export_batches(500):
        assert_whole(rows)
        assert len(keys) <= 500
    assert variable.size() >= len(COUNTERS)
    assert str(variable.stats)


def table(store: kvemb.Store, cold: Any, **arguments: Any) -> kvemb.Variable:
    return store.get_variable(
        "table", dim=DIM, kv_creator=cold(), optimizer=kvemb.optimizers.SGD(1.0),
        restrict_policy=kvemb.FrequencyRestrictPolicy,
        **{"hot_rows": HOT_ROWS, "devices": ["cpu", "cpu"], **arguments},
    )  # fmt: skip


def run_beside(works: list[Callable[[], None]], again: Callable[[], object]) -> None:
    """Run each work in a thread, and beside them the same over and over until they end."""
    stop = threading.Event()

    def all_works() -> None:
        try:
            run_all(works)
        finally:
            stop.set()

    def until_stopped() -> None:
        while not stop.is_set():
            again()

    run_all([all_works, until_stopped])


@pytest.mark.slow
@pytest.mark.parametrize("cold", [kvemb.RocksDBCreator, kvemb.MemoryCreator])
def test_no_update_is_lost_and_no_row_torn(open_store: Any, tmp_path: Path, cold: Any) -> None:
    store = open_store(tmp_path / "store")
    assert_exact(store, table(store, cold))


@pytest.mark.slow
@pytest.mark.parametrize("hot_rows", [128, None], ids=["two tiers", "three tiers"])
def test_the_same_with_arrays_on_a_gpu(
    open_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot_rows: int | None
) -> None:
    device_of("cpu")
    monkeypatch.setitem(registry.hot_backends, "gpu", "cuda_on_cpu:SmallCudaTable")
    store = open_store(tmp_path / "store")
    variable = table(store, kvemb.RocksDBCreator, devices="gpu:0", hot_rows=hot_rows)
    assert_exact(store, OnGpu(variable), rounds=2)


def assert_exact(store: kvemb.Store, variable: Any, rounds: int = ROUNDS) -> None:
    """Run the workers, and assert that the table has what they say."""
    variable.upsert(COUNTERS, full(0, len(COUNTERS)))
    workers = [Worker(number, variable, rounds) for number in range(THREADS)]
    run_beside([worker.work for worker in workers], lambda: look_at_all(store, variable))

    np.testing.assert_array_equal(variable.lookup(COUNTERS, touch=False)[:, 0], sum(w.added for w in workers))
    used = sum(worker.used for worker in workers)
    np.testing.assert_array_equal(variable.restrict_policy.status(COUNTERS), 1 + used)
    rows, born = variable.lookup(BORN, return_exists=True)
    trained = sum(worker.trained for worker in workers)
    np.testing.assert_array_equal(rows[:, 0], trained)
    np.testing.assert_array_equal(born, trained > 0)
    rows, won = variable.lookup(FIRST_WINS, return_exists=True)
    assert np.isin(rows[won], np.arange(1, THREADS + 1)).all()
    _, stamped = variable.lookup(STAMPED, return_exists=True)
    kept = sum(int(worker.kept.sum()) for worker in workers)
    wanted = len(COUNTERS) + int(born.sum()) + int(won.sum()) + int(stamped.sum()) + kept
    assert variable.size() == wanted == len(variable.export()[0])
    storage = inside(variable).storage
    with storage.access.held():
        ahead = sum(len(fetch.keys) for fetch in storage.ahead._kept)
        assert storage.staged.ahead.held == ahead * RowBlock.bytes_per_row(storage.schema)
    assert variable.size() == sum(
        variable.size(number) for number in range(len(inside(variable).specification.devices))
    )


@pytest.mark.slow
def test_restrict_beside_eight_threads_leaves_an_exact_size(open_store: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    variable = table(store, kvemb.RocksDBCreator)

    def write(number: int) -> None:
        chance = np.random.default_rng(number)
        for turn in range(ROUNDS):
            keys = chance.integers(0, 3000, 150)
            variable.upsert(keys, full(turn, len(keys)))
            variable.apply_gradients(keys, full(-1, len(keys)))
            assert_whole(variable.lookup(keys))
            variable.remove(chance.integers(0, 3000, 20))

    writers = [lambda number=number: write(number) for number in range(THREADS)]
    run_beside(writers, lambda: variable.restrict(500, trigger=600))
    keys, rows = variable.export()
    assert_whole(rows)
    _, exists = variable.lookup(np.arange(3000), return_exists=True)
    assert len(keys) == variable.size() == int(exists.sum())
    before = variable.size()
    assert variable.restrict(100) == before - 100
    assert variable.size() == len(variable.export()[0]) == 100


@pytest.mark.slow
def test_closing_beside_calls_leaves_what_was_acknowledged(open_store: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    variable = table(store, kvemb.RocksDBCreator)
    acknowledged = [-1.0] * THREADS
    started = threading.Barrier(THREADS + 1)

    def write(number: int) -> None:
        started.wait()
        keys = np.arange(number, 3000, THREADS)
        for turn in range(1_000_000):
            variable.upsert(keys, full(turn, len(keys)))
            acknowledged[number] = turn
            variable.lookup(np.arange(3000))

    def write_until_closed(number: int) -> None:
        with pytest.raises(kvemb.errors.Closed):
            write(number)

    def close() -> None:
        started.wait()
        threading.Event().wait(0.3)
        store.close()

    run_all([close, *(lambda number=number: write_until_closed(number) for number in range(THREADS))])
    reopened = open_store(tmp_path / "store").variables["table"]
    for number, turn in enumerate(acknowledged):
        rows = reopened.lookup(np.arange(number, 3000, THREADS))
        assert_whole(rows)
        # A call that close() overtook may have been applied as far as it got.
        assert (rows >= turn).all()
