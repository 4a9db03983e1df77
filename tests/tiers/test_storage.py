"""The actor that moves rows: one place counts for each, the count is exact, and a failure poisons."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from unittest.mock import Mock

import numpy as np
import pytest
from blocks import SCHEMA, Later, hot_tables_of, rows_of, values_of

from kvemb.backends.memory_store import MemoryStore
from kvemb.errors import Closed, ReadOnly
from kvemb.limits import Limits
from kvemb.memory.memtables import Memtable
from kvemb.memory.staging import Staging
from kvemb.rows.block import DIRTY
from kvemb.store_state import DroppedState, StoreState
from kvemb.threads.pool import Here
from kvemb.tiers.storage import TieredStorage
from tests.histories import small_spill


class Told:
    """A ChangeLog or a Journal that writes down what it is told."""

    def __init__(self):
        self.lines = []

    def __getattr__(self, name):
        return lambda *arguments: self.lines.append(name)


def storage_of(cold=None, cells=16, **arguments):
    given = {
        "state": StoreState("test"),
        "executor": Here(),
        "staging": Staging(1 << 24),
        "limits": Limits(**small_spill(8)),
    }
    cold = cold or MemoryStore(SCHEMA)
    sizes = {"memtable_rows": 64}
    return TieredStorage(hot_tables_of(cells), cold, readers=Here(), **sizes, **(given | arguments))


def put(storage, keys, value=1.0):
    """Make rows, which go hot."""
    with storage.writing():
        at = storage.locate(np.array(keys))
        at.rows.put(slice(None), rows_of(at.rows.keys, value, flags=DIRTY, score=value))
        storage.promote(at)


def rows(storage, keys):
    with storage.reading():
        at = storage.locate(np.array(keys))
        found = values_of(at.with_cold(at.exists).rows)
        for block in storage.hot_tables.read(at.cells, at.owners):
            found |= values_of(block)
        return found


def test_rows_that_do_not_fit_are_spilled_and_none_is_lost():
    storage = storage_of()
    for start in range(0, 100, 10):
        put(storage, range(start, start + 10), float(start))
    assert storage.size == 100
    stats = storage.stats()
    assert (stats.rows, stats.rows_hot) == (100, 16)
    assert stats.cold_writes >= 100 - 16 - 32, "a memtable of 32 may wait"
    assert 0 < stats.rows_waiting <= 32
    assert rows(storage, range(100)) == {key: float(key // 10 * 10) for key in range(100)}
    assert storage.check() == []


def test_a_row_that_is_hot_again_is_clean_and_stays_in_its_memtable():
    storage = storage_of(executor=Later())
    put(storage, range(20))
    waiting = np.setdiff1d(np.arange(20), storage.hot_tables.keys())
    assert len(waiting) == storage.stats().rows_waiting == 4
    with storage.reading():
        storage.promote(storage.locate(waiting[:1]))
    assert np.isin(waiting[0], storage.hot_tables.keys())
    assert waiting[0] not in next(storage.hot_tables.tables[0].dirty_batches(100))[1].keys
    put(storage, range(100, 140), 2.0)
    assert not np.isin(waiting, storage.hot_tables.keys()).any()
    assert rows(storage, waiting) == dict.fromkeys(waiting.tolist(), 1.0)


def test_going_back_forgets_a_row_of_a_memtable_that_is_hot_again():
    storage = storage_of(executor=Later())
    put(storage, range(20))
    waiting = np.setdiff1d(np.arange(20), storage.hot_tables.keys())
    with storage.reading():
        storage.promote(storage.locate(waiting[:1]))
    before = MemoryStore(SCHEMA)
    before.write(rows_of(waiting, 9.0))
    with storage.closing(), storage.memtables.paused():
        storage.go_back(before, len(waiting), 0, 0, np.empty(0, np.int64))
    assert rows(storage, range(20)) == dict.fromkeys(waiting.tolist(), 9.0)
    assert storage.stats().rows_waiting == 0


def test_no_snapshot_is_taken_without_rows_that_no_memtable_could_take(monkeypatch):
    """They are written once they can be, also those that are hot again."""
    storage = storage_of()
    with monkeypatch.context() as patched:
        patched.setattr(Memtable, "put", Mock(side_effect=MemoryError))
        put(storage, range(20))
    storage.state.cause, kept = None, np.setdiff1d(np.arange(20), storage.hot_tables.keys())
    put(storage, kept[:1])
    with storage.access.held(), pytest.raises(MemoryError):
        storage.snapshot.begin()
    assert not storage.snapshot.under_way
    storage.retry_writes()
    storage.state.cause = None  # recover() does this
    put(storage, range(100, 150), 2.0)
    with storage.writing():
        storage.write_dirty()
    assert values_of(storage.cold.read(np.arange(20))[0]) == dict.fromkeys(range(20), 1.0)


def test_rows_that_left_are_written_before_a_variable_refuses_calls_and_each_key_is_counted_once():
    changes, executor = Told(), Later()
    storage = storage_of(record=changes.record, executor=executor)
    put(storage, range(20))
    waiting = np.setdiff1d(np.arange(20), storage.hot_tables.keys())
    with storage.writing():
        storage.replace(storage.locate(waiting), rows_of(waiting, 2.0, flags=DIRTY), 1)
    assert storage.stats().rows_waiting == 2 * len(waiting)
    threading.Timer(0.05, executor.go).start()
    storage.end(DroppedState(storage.state, "it was dropped"))
    assert values_of(storage.cold.read(waiting)[0]) == dict.fromkeys(waiting.tolist(), 2.0)
    assert changes.lines == ["record"]
    assert storage.counts.cold_writes == len(waiting)
    with pytest.raises(Closed, match="dropped"):
        put(storage, [1])


def test_whole_rows_replace_what_is_there_and_new_ones_stay_cold():
    storage = storage_of(step=5)
    put(storage, [1, 2])
    given = rows_of([1, 7], 9.0, flags=DIRTY)
    with storage.writing():
        storage.replace(storage.locate(given.keys), given, 3)
    assert rows(storage, [1, 2, 7]) == {1: 9.0, 2: 1.0, 7: 9.0}
    assert (storage.size, storage.step, storage.stats().rows_hot) == (3, 5, 2)


def test_what_was_read_ahead_is_forgotten_when_the_row_is_written():
    storage = storage_of()
    storage.cold.write(rows_of([7], 1.0))
    storage.size = 1
    storage.ahead.start(lambda: np.array([7]), after_lookup=False)
    put(storage, [7], 2.0)
    with storage.writing():
        storage.write_dirty()
    put(storage, range(100, 200), 50.0)  # the row is clean now: it leaves memory without being written
    assert storage.hot_tables.find(np.array([7]), None).tolist() == [-1]
    assert rows(storage, [7]) == {7: 2.0}


def test_every_change_is_told_to_the_log_and_acknowledged_after():
    log = Told()
    storage = storage_of(journal=log)
    with storage.writing():
        storage.log.located(storage.locate(np.array([1])), 1)
    with storage.writing():
        storage.remove(np.array([], np.int64))
    with storage.writing_without_snapshot():
        storage.clear()
    storage.log.commit()
    assert log.lines == ["rows", "removed", "cleared", "commit"]


def test_what_reaches_the_cold_store_is_recorded_first():
    changes = Told()
    storage = storage_of(record=changes.record, record_cleared=changes.record_cleared)
    put(storage, [1])
    assert changes.lines == []
    assert storage.check() == []
    assert changes.lines == ["record"]
    with storage.writing_without_snapshot():
        storage.clear()
    assert changes.lines == ["record", "record_cleared"]


def test_the_state_of_the_store_is_asked_for_every_call():
    storage = storage_of(state=StoreState("test", read_only=True))
    assert rows(storage, [1]) == {}
    with pytest.raises(ReadOnly):
        put(storage, [1])
    storage.state.close()
    with pytest.raises(Closed):
        rows(storage, [1])
    storage = storage_of()
    ended = StoreState("ended")
    ended.close()
    storage.end(ended)
    with pytest.raises(Closed, match="ended"):
        storage.ahead.start(lambda: np.array([1]), after_lookup=True)


def test_the_rows_of_another_cold_store_are_shown_from_then_on():
    storage, other = storage_of(state=StoreState("test", read_only=True)), MemoryStore(SCHEMA)
    other.write(rows_of([4], 6.0))
    with storage.closing():
        storage.refresh(other, 1, 12, 0, None)
    assert rows(storage, [4]) == {4: 6.0}
    assert (storage.size, storage.step) == (1, 12)
    storage.advance(9, 0)
    assert storage.step == 12


def test_what_bypasses_the_hot_tier_finds_every_row_cold_and_leaves_none_hot():
    storage = storage_of()
    put(storage, [1, 2])
    with storage.bypassing() as cold:
        assert values_of(cold.read(np.array([1, 2]))[0]) == {1: 1.0, 2: 1.0}
        storage.ingest_recorded(lambda: cold.write(rows_of([2, 3], 5.0)), 1, 8)
    assert (storage.size, storage.step, storage.stats().rows_hot) == (3, 8, 0)
    assert rows(storage, [1, 2, 3]) == {1: 1.0, 2: 5.0, 3: 5.0}


@pytest.mark.parametrize("held", ["paused", "poisoning"])
def test_what_a_clear_does_is_one_block(monkeypatch, held):
    """Between two, an exception from another thread would poison nothing."""
    storage = storage_of()
    put(storage, range(20))
    owner = storage.memtables if held == "paused" else storage.access
    block, ends = getattr(owner, held), []

    @contextmanager
    def interrupted_after():
        with block() as inside:
            yield inside
        ends.append(storage.size)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, held, interrupted_after)
    with pytest.raises(KeyboardInterrupt), storage.writing_without_snapshot():
        storage.clear()
    assert ends == [0]
    assert rows(storage, range(20)) == {}
