"""Rows that move between tiers on other threads, where hot tables are on a GPU: what is left to a caller, and races."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arrays_on_device import there
from blocks import SCHEMA, Later, Watched, rows_of
from counting_device import CountingDevice
from cuda_devices import device_of
from cuda_on_cpu import CudaOnCpuTable

from kvemb.backends.cpu import CpuTable
from kvemb.initializers import Constant
from kvemb.limits import Limits
from kvemb.memory.budget import Budget
from kvemb.memory.staging import Staging
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.operations.table_operations import TableOperations
from kvemb.optimizers import SGD
from kvemb.registry import row_kernels
from kvemb.restrict import TimestampRestrictPolicy
from kvemb.store_state import StoreState
from kvemb.threads.pool import Here
from kvemb.tiers.gpu_storage import GpuStorage
from kvemb.tiers.gpu_tables import GpuTables, TieredGpuTables
from kvemb.tiers.partition import Partition, default_partitioner
from tests.histories import small_spill

ROWS = 600


class Place:
    """A variable whose rows 0 to 599, of the value of 1, are all cold. 128 can be hot on a device, and 64 below it.

    device: counts what it does. readers: move rows.
    """

    def __init__(self, readers: Any = None, below: int = 64, device: Any = None) -> None:
        device_of("cpu")
        self.device, self.cold, self.state = device or CountingDevice(), Watched(), StoreState("test")
        self.cold.write(rows_of(range(ROWS)))
        kind = type("Table", (CudaOnCpuTable,), {"open_device": staticmethod(lambda name: self.device)})
        tables: list[Any] = [kind(SCHEMA, 128, 128), *([CpuTable(SCHEMA, below, below)] if below else [])]
        partition = Partition(default_partitioner, np.dtype(np.int64), 1)
        seen_as_one = TieredGpuTables if below else GpuTables
        self.hot = seen_as_one(tables, partition, [Budget(1 << 24)] * len(tables), min_rows=None)
        self.readers = readers or Here()
        self.storage = GpuStorage(
            self.hot, self.cold, state=self.state, executor=Here(), readers=self.readers,
            memtable_rows=64, staging=Staging(1 << 24), limits=Limits(**{**small_spill(16), "ahead_rows": 200}),
            size=ROWS,
        )  # fmt: skip
        policy = TimestampRestrictPolicy(clock="steps")
        factory = RowFactory(SCHEMA, Constant(7), SGD(1.0), row_kernels())
        scoring = Scorer(policy, self.hot)
        self.operations = TableOperations(self.storage, factory, scoring, None)

    def given(self, array: Any) -> Any:
        return self.operations.device_rows.given(there(array))

    def prefetch(self, keys: Any, *, after_lookup: bool = False) -> None:
        self.operations.prefetch(np.asarray(keys), after_lookup)

    def lookup(self, keys: Any) -> Any:
        out = there(np.empty((len(keys), 2), np.float32))
        self.operations.lookup_on_device(
            self.given(np.asarray(keys)), self.operations.device_rows.given(out), None, touch=True
        )
        self.storage.ahead.looked_up()
        return out.array

    def train(self, keys: Any) -> None:
        """Subtract 1 of rows."""
        grads = self.given(np.ones((len(keys), 2), np.float32))
        self.operations.apply_gradients_on_device(self.given(np.asarray(keys)), grads)

    @property
    def on_device(self) -> list[int]:
        return sorted(self.hot.tables[0].keys().tolist())


FEW = list(range(100, 150))


def test_rows_read_ahead_are_on_the_device_when_their_lookup_comes() -> None:
    place = Place()
    place.prefetch(FEW)
    assert place.on_device == FEW
    place.device.start()
    assert (place.lookup(FEW) == 1).all()
    assert (place.device.waits, place.device.downloads, place.device.uploads) == (1, [8], [])
    assert place.storage.staged.ahead.held == 0, "the host's copies were forgotten"


@pytest.mark.parametrize("after_lookup", [False, True])
def test_a_caller_does_not_wait_for_keys_on_the_device(after_lookup: bool) -> None:
    readers = Later()
    place = Place(readers)
    keys = there(FEW)
    place.operations.prefetch_on_device(place.operations.device_rows.given(keys), after_lookup=after_lookup)
    assert (place.device.waits, place.device.downloads) == (0, [8 * len(FEW)])
    keys.array[:] = 0  # they are the caller's again
    if after_lookup:
        place.lookup([7])
        place.device.start()
    readers.go()
    assert place.device.waits > 0
    assert place.on_device == (FEW if not after_lookup else [7, *FEW])


def test_keys_that_wait_for_a_thread_are_forgotten_where_others_came() -> None:
    readers = Later()
    place = Place(readers)
    for start in (100, 200, 300):
        keys = place.operations.device_rows.given(there(np.arange(start, start + 10)))
        place.operations.prefetch_on_device(keys, after_lookup=False)
    assert place.device.waits == 0
    assert len(place.device.staging._idle) == 1, "memory that is copied to is kept"
    readers.go()
    assert place.on_device == [*range(200, 210), *range(300, 310)]


def test_rows_below_the_device_move_up_ahead() -> None:
    place = Place()
    for start in range(0, 300, 50):
        place.lookup(range(start, start + 50))
    below = sorted(place.hot.tables[1].keys().tolist())
    assert below
    place.prefetch(below)
    assert set(below) <= set(place.on_device)
    assert not np.isin(place.hot.tables[1].keys(), below).any()
    place.device.start()
    assert (place.lookup(below) == 1).all()
    assert place.device.downloads == [8]


def test_a_lookup_leaves_moves_to_another_thread_or_the_next_call() -> None:
    readers = Later()
    place = Place(readers)
    place.lookup(FEW)
    assert place.on_device == []
    readers.go()
    assert place.on_device == FEW
    place.lookup(range(50))
    assert place.on_device == FEW
    place.train(range(50))  # a step takes the lock
    assert place.on_device == [*range(50), *FEW]
    assert (place.lookup([*range(50), *FEW]) == [[0]] * 50 + [[1]] * 50).all()
    readers.go()


def test_rows_below_the_device_that_a_lookup_used_move_up_on_the_other_thread() -> None:
    readers = Later()
    place = Place(readers)
    for start in range(0, 300, 50):
        place.lookup(range(start, start + 50))
        readers.go()
    below = place.hot.tables[1].keys().tolist()
    assert below
    place.lookup(below)
    assert not np.isin(below, place.on_device).any()
    readers.go()
    assert np.isin(below, place.on_device).all()


def test_dirty_rows_that_are_evicted_leave_on_the_other_thread() -> None:
    readers = Later()
    place = Place(readers, below=0)
    place.train(range(128))
    place.lookup(range(200, 328))
    spilled = place.storage.counts
    assert place.storage.memtables.rows + spilled.cold_writes == 0
    readers.go()
    assert place.storage.memtables.rows + spilled.cold_writes >= 128
    assert (place.lookup(range(128)) == 0).all()


def test_a_step_after_moves_finds_its_rows_without_asking() -> None:
    """Moves find the last lookup's keys again, on their own thread."""
    place = Place()
    keys = counted_keys(place, range(50))
    place.lookup(range(50))
    rows = place.operations.device_rows
    out = rows.given(there(np.empty((50, 2), np.float32)))
    place.operations.lookup_on_device(keys, out, None, touch=True)
    place.prefetch(range(300, 370))
    assert set(range(300, 370)) <= set(place.on_device)
    grads = place.given(np.ones((50, 2), np.float32))
    place.device.start()
    place.operations.apply_gradients_on_device(keys, grads)
    assert (place.device.waits, place.device.downloads) == (0, [])
    assert (place.lookup(range(50)) == 0).all()


def look_up(place: Place, keys: Any) -> None:
    out = place.given(np.empty((keys.size, 2), np.float32))
    place.operations.lookup_on_device(keys, out, None, touch=False)


def test_a_step_after_a_lookup_that_failed_finds_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    keys = counted_keys(place, range(50))
    place.prefetch(range(60))
    look_up(place, keys)

    def fail(*_: Any) -> Any:
        raise MemoryError("none left")

    with monkeypatch.context() as patched:
        patched.setattr(place.hot.tables[0].cells, "missing", fail)
        with pytest.raises(MemoryError):
            look_up(place, counted_keys(place, range(10, 60)))
    place.operations.apply_gradients_on_device(keys, place.given(np.ones((50, 2), np.float32)))
    assert (place.lookup(range(60)) == [[0]] * 50 + [[1]] * 10).all()


@pytest.mark.parametrize("count", [50, 20])
def test_a_step_with_keys_that_have_other_memory_finds_its_rows(count: int) -> None:
    """As a tensor has after `keys.data = others`, which PyTorch does not count as a change."""
    place = Place()
    keys, others = counted_keys(place, range(50)), counted_keys(place, range(60, 60 + count))
    place.prefetch(range(110))
    look_up(place, keys)
    moved = replace(keys, address=others.address, shape=others.shape)
    place.operations.apply_gradients_on_device(moved, place.given(np.ones((count, 2), np.float32)))
    assert (place.lookup(range(60)) == 1).all()
    assert (place.lookup(range(60, 60 + count)) == 0).all()


def counted_keys(place: Place, keys: Any) -> Any:
    """Keys whose owner counts changes, as PyTorch's tensors do."""
    return replace(place.operations.device_rows.given(there(keys, stream=5)), version=0)


CHANGES: dict[str, Callable[[Place], object]] = {
    "removed": lambda place: place.operations.remove(np.array([5, 6])),
    "replaced": lambda place: place.operations.upsert(np.array([5, 6]), np.zeros((2, 2), np.float32)),
    "cleared": lambda place: place.operations.clear(),
    "restricted": lambda place: place.operations.restrict(ROWS - 7, None),
    "trained and spilled": lambda place: (place.train([5, 6]), crowd_out(place)),
    "removed and written": lambda place: (place.operations.remove(np.array([5, 6])), crowd_out(place)),
}


def crowd_out(place: Place) -> None:
    for start in range(200, 600, 100):
        place.train(range(start, start + 100))
    with place.storage.access.held():
        place.storage.write_dirty()


@pytest.mark.parametrize("how", CHANGES)
def test_what_changes_while_it_is_read_ahead_is_not_made_hot_as_it_was(how: str) -> None:
    place, changes = Place(), [CHANGES[how]]
    make = place.storage.ahead.move

    def change_first(keys: Any = None) -> None:
        if changes:
            changes.pop()(place)
        make(keys)

    place.storage.ahead.move = change_first  # type: ignore[method-assign]
    place.prefetch(range(10))
    assert not changes
    out = np.full((10, 2), 9, np.float32)
    exists = np.ones(10, np.bool_)
    place.operations.lookup(np.arange(10), out, exists, touch=False)
    there_now = {"cleared": [], "restricted": [*range(7, 10)]}.get(how, list(range(10)))
    if "removed" in how:
        there_now = [key for key in there_now if key not in (5, 6)]
    assert np.flatnonzero(exists).tolist() == there_now
    for key in there_now:
        assert (out[key] == (0 if key in (5, 6) and how != "restricted" else 1)).all()
    assert place.storage.check() == []


def test_nothing_is_moved_where_a_snapshot_has_no_room_for_copies() -> None:
    place = Place()
    with place.storage.access.held():
        place.storage.snapshot.begin()
        place.storage.access.set_room(False)
    place.storage.ahead.move(np.arange(10))
    assert place.on_device == []
    place.storage.snapshot.end()
    place.storage.ahead.move(np.arange(10))
    assert place.on_device == [], "none of them is in memory"


def test_a_snapshot_has_rows_that_moves_evict_as_they_were() -> None:
    place = Place(below=0)
    place.train(range(128))
    with place.storage.access.held():
        snapshot = place.storage.snapshot.begin()
    place.prefetch(range(200, 328))
    assert place.on_device == list(range(200, 328))
    kept = np.concatenate([rows.keys for rows in snapshot._copies])
    assert sorted(kept.tolist()) == list(range(128))
    place.storage.snapshot.end()


def test_a_poisoned_or_closed_store_moves_nothing() -> None:
    for end in (lambda place: place.state.poison(OSError("gone")), lambda place: place.state.close()):
        readers = Later()
        place = Place(readers)
        place.prefetch(FEW)
        end(place)
        readers.go()
        with place.storage.access.held():
            assert place.hot.tables[0].size == 0


def test_a_failure_to_move_poisons_and_loses_nothing() -> None:
    place = Place()
    place.prefetch(FEW)
    assert (place.lookup(FEW) == 1).all()

    def fail(*arguments: Any, **named: Any) -> Any:
        raise MemoryError("no cell")

    place.hot.tables[0].insert = fail  # type: ignore[method-assign]
    place.prefetch(range(20))
    assert isinstance(place.state.cause, MemoryError)
    assert (place.lookup(range(20)) == 1).all()
    assert (place.lookup(FEW) == 1).all()
