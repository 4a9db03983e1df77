"""A cold store that fails at its n-th write or read: writes are refused after it, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stress.lockstep import LockstepChecker, check_same
from stress.model import Model
from waiting import wait_until

import kvemb
from kvemb import registry
from kvemb.errors import Closed, ColdStoreError, Corruption, Poisoned
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.rows.block import RowBlock
from tests.histories import small_spill

DIM = 4
KEYS = np.arange(600)


class Failing:
    """A delegate for a cold store. Of the calls of `what`, the n-th and all later ones fail."""

    what = ""
    after = 0
    error: BaseException = ColdStoreError(errno.ENOSPC, "no space left on device")
    halfway = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _step(self, what: str) -> None:
        if what == Failing.what:
            Failing.after -= 1
            if Failing.after < 0:
                raise Failing.error

    def write(self, rows: RowBlock) -> int:
        try:
            self._step("write")
        except Exception:
            if Failing.halfway:
                self._inner.write(rows.select(slice(0, len(rows) // 2)))
            raise
        return self._inner.write(rows)

    def fill(self, rows: RowBlock) -> Any:
        self._step("read")
        return self._inner.fill(rows)

    def clear(self) -> None:
        self._step("clear")
        self._inner.clear()


def fail(what: str, after: int, error: BaseException | None = None, *, halfway: bool = False) -> None:
    """Let `after` more calls of `what` succeed."""
    Failing.what, Failing.after, Failing.halfway = what, after, halfway
    Failing.error = error or ColdStoreError(errno.ENOSPC, "no space left on device")


@pytest.fixture(params=["rocks", "memory"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LockstepChecker]:
    """A table of 600 keys, 500 rows of which are all in a cold store that can be made to fail."""
    real = registry.cold_backend

    def backend(name: str) -> Any:
        if name == "memory":
            return lambda schema: Failing(real("memory")(schema))

        class Database(real("rocks")):  # type: ignore[misc]
            def attach(self, *args: Any) -> Any:
                return Failing(super().attach(*args))

        return Database

    monkeypatch.setattr(registry, "cold_backend", backend)
    fail("", 0)
    small = Limits(**small_spill(32))
    store = kvemb.open(tmp_path / "store", memory_budget="4MiB", limits=small)
    creator = kvemb.MemoryCreator() if request.param == "memory" else kvemb.RocksDBCreator()
    optimizer, policy = kvemb.optimizers.Adagrad(0.5), kvemb.FrequencyRestrictPolicy()
    variable = store.get_variable(
        "table", dim=DIM, hot_rows=32, kv_creator=creator, optimizer=optimizer, restrict_policy=policy
    )
    model = Model(KEYS, variable.value_dtype, DIM, initializer=variable.initializer, optimizer=optimizer, policy=policy)
    table = LockstepChecker(variable, model)
    table.upsert(KEYS[:500], rows(0, 500))
    store.flush()
    assert inside(variable).storage.check() == []  # writes the rows of a variable in memory, too
    yield table
    store.close()


def rows(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).standard_normal((count, DIM), np.float32)


def store_of(twin: LockstepChecker) -> kvemb.Store:
    return twin.variable.resource_handle[0]


def write_until_poisoned(twin: LockstepChecker) -> tuple[Any, Any]:
    """Upsert until a call raises; returns the keys and rows of that call, which nobody acknowledged."""
    for turn in range(1, 1000):
        keys = np.random.default_rng(turn).choice(KEYS, 40, replace=False)
        try:
            twin.upsert(keys, rows(turn, 40))
            twin.lookup(np.random.default_rng(-turn % 97).choice(KEYS, 40), touch=True)
        except Poisoned:
            return keys, rows(turn, 40)
    raise AssertionError("nothing failed")


def assert_nothing_acknowledged_is_lost(twin: LockstepChecker, keys: Any = (), given: Any = None) -> None:
    """Every row reads as the model has it; one of the call that raised may instead be as that call gave it."""
    got, exists = twin.variable.lookup(KEYS, return_exists=True, touch=False)
    wanted, present = twin.model.lookup(KEYS, touch=False)
    for row, key in enumerate(keys):
        if (got[key] == given[row]).all() and exists[key]:
            wanted[key], present[key] = given[row], True
    check_same("exists", exists, present, KEYS)
    check_same("rows", got, wanted, KEYS)
    assert twin.variable.size() == int(exists.sum())


@pytest.mark.independent
@pytest.mark.parametrize(
    ("after", "error", "halfway"),
    [(0, None, False), (1, Corruption("damaged"), True), (2, RuntimeError("so"), False), (5, MemoryError(), True)],
)
def test_a_write_that_fails_in_any_way_loses_nothing(
    twin: LockstepChecker, after: int, error: Exception | None, halfway: bool
) -> None:
    fail("write", after, error, halfway=halfway)
    keys, given = write_until_poisoned(twin)
    for _ in range(3):
        assert_nothing_acknowledged_is_lost(twin, keys, given)


SOME, GIVEN = KEYS[:50], rows(1, 50)
# Every call that changes something.
WRITES: dict[str, Callable[[kvemb.Variable, kvemb.Store], object]] = {
    "upsert": lambda variable, _: variable.upsert(SOME, GIVEN),
    "accum": lambda variable, _: variable.accum(SOME, GIVEN, GIVEN, np.ones(50, np.bool_)),
    "apply_gradients": lambda variable, _: variable.apply_gradients(SOME, GIVEN),
    "remove": lambda variable, _: variable.remove(SOME),
    "clear": lambda variable, _: variable.clear(),
    "restrict": lambda variable, _: variable.restrict(10),
    "apply_update": lambda variable, _: variable.restrict_policy.apply_update(SOME),
    "flush": lambda _, store: store.flush(),
    "checkpoint": lambda _, store: store.checkpoint(store.path.with_name("checkpoint")),
}


def test_after_a_failed_write_every_write_raises_poisoned_with_the_cause(twin: LockstepChecker) -> None:
    store = store_of(twin)
    fail("write", 0)
    keys, given = write_until_poisoned(twin)
    for write in WRITES.values():
        with pytest.raises(Poisoned, match="no space left") as raised:
            write(twin.variable, store)
        assert isinstance(raised.value.__cause__, ColdStoreError)
    assert_nothing_acknowledged_is_lost(twin, keys, given)
    assert not store.path.with_name("checkpoint").exists()


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("name", WRITES)
def test_whichever_call_meets_the_failure_sizes_and_rows_agree(twin: LockstepChecker, name: str, after: int) -> None:
    chosen = np.random.default_rng(9).choice(KEYS, 60, replace=False)
    twin.upsert(chosen, rows(9, 60))
    fail("write", after)
    try:
        for _ in range(20):
            WRITES[name](twin.variable, store_of(twin))
    except Poisoned:
        pass
    except FileExistsError:
        assert name == "checkpoint"
    fail("", 0)  # the calls may have written less often than that
    twin.variable.prefetch(KEYS)
    _, exists = twin.variable.lookup(KEYS, return_exists=True)
    assert twin.variable.size() == int(exists.sum())
    np.testing.assert_array_equal(~np.isnan(twin.variable.restrict_policy.status(KEYS)), exists)


def test_a_clear_that_fails_loses_nothing(twin: LockstepChecker) -> None:
    chosen = np.random.default_rng(9).choice(KEYS, 60, replace=False)
    twin.upsert(chosen, rows(9, 60))
    fail("clear", 0)
    with pytest.raises(Poisoned):
        twin.variable.clear()
    assert_nothing_acknowledged_is_lost(twin)


def test_a_failed_read_raises_and_poisons_nothing(twin: LockstepChecker) -> None:
    fail("read", 0)
    with pytest.raises(ColdStoreError, match="no space left"):
        twin.variable.lookup(KEYS, touch=False)
    fail("", 0)
    twin.check_export()
    twin.upsert(KEYS[:50], rows(3, 50))
    twin.lookup(KEYS, touch=True)


def test_a_call_that_cannot_read_changes_nothing(twin: LockstepChecker) -> None:
    twin.lookup(KEYS[:20], touch=True)
    for name in ("accum", "apply_gradients", "remove", "apply_update"):
        fail("read", 0)
        with pytest.raises(ColdStoreError):
            WRITES[name](twin.variable, store_of(twin))
        fail("", 0)
        twin.check_export()


@pytest.mark.parametrize("after", [0, 1, 4])
def test_reopening_returns_to_the_last_flush(twin: LockstepChecker, after: int) -> None:
    if not twin.variable.persistent:
        pytest.skip("does not apply: rows in memory do not outlive their store")
    flushed = twin.model.copy()
    fail("write", after)
    write_until_poisoned(twin)
    store_of(twin).close()
    fail("", 0)
    with kvemb.open(store_of(twin).path, memory_budget="4MiB") as store:
        again = LockstepChecker(store.variables["table"], flushed)
        again.check_export()
        again.upsert(KEYS[:50], rows(5, 50))
        store.flush()
        again.check_export()


def test_a_store_that_closes_waits_for_reads_under_way(twin: LockstepChecker) -> None:
    reading, go_on = threading.Event(), threading.Event()
    store, cold = store_of(twin), inside(twin.variable).storage.cold
    fill_now = cold._inner.fill

    def slow(rows: RowBlock) -> Any:
        reading.set()
        assert go_on.wait(60)
        return fill_now(rows)

    cold._inner.fill = slow
    with ThreadPoolExecutor(2) as threads:
        looking = threads.submit(twin.variable.lookup, KEYS)
        assert reading.wait(60)
        closing = threads.submit(store.close)
        wait_until(lambda: store.state.closed)
        go_on.set()
        with pytest.raises(Closed):
            looking.result(60)
        closing.result(60)
