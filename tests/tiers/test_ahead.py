"""Reads ahead: when they are made, how long they are kept, and what a lookup leaves to their thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from blocks import SCHEMA, Later, Watched, hot_tables_of, rows_of
from quick import quick

import kvemb
from kvemb.errors import ColdStoreError
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.memory.staging import Staging
from kvemb.operations.reads import TableReads
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.restrict import FrequencyRestrictPolicy
from kvemb.rows.block import RowBlock
from kvemb.store_state import DroppedState, StoreState
from kvemb.threads import disk_waits, parallel
from kvemb.threads.disk_waits import ReadThreads
from kvemb.threads.parallel import free_cores
from kvemb.threads.pool import Here
from kvemb.tiers import ahead
from kvemb.tiers.ahead import READS_AHEAD
from kvemb.tiers.storage import TieredStorage
from tests.histories import small_spill

ROW_BYTES = RowBlock.bytes_per_row(SCHEMA)
TABLES, ROWS, BATCH = 6, 20_000, 500


class Place:
    """A variable whose rows 0 to 99, of the value of their key, are all cold; 16 can be hot."""

    def __init__(self, readers=None, writer=None, cold=None):
        self.cold, self.state, self.staging = cold or Watched(), StoreState("test"), Staging(1 << 24)
        self.cold.write(rows_of(range(100)))
        self.hot = hot_tables_of(16)
        self.storage = TieredStorage(
            self.hot, self.cold, state=self.state, executor=writer or Here(), readers=readers or Here(),
            memtable_rows=64, staging=self.staging, limits=Limits(**small_spill(16)), size=100,
        )  # fmt: skip
        factory = RowFactory(SCHEMA, None, None, None)
        self.reads = TableReads(self.storage, factory, Scorer(FrequencyRestrictPolicy(), self.hot))

    def prefetch(self, *keys, after_lookup=False):
        self.reads.prefetch(np.array(keys), after_lookup)

    def lookup(self, *keys):
        out = np.empty((len(keys), 2), np.float32)
        self.reads.lookup(np.array(keys), out, None, touch=True)
        assert (out == 1).all()

    @property
    def kept(self):
        return [fetch.keys.tolist() for fetch in self.storage.ahead._kept]


def test_a_read_for_which_the_system_has_no_memory_takes_none_of_the_budget(monkeypatch):
    def with_keys(schema, keys):
        raise MemoryError

    place = Place()
    with monkeypatch.context() as changed:
        changed.setattr(ahead, "RowBlock", SimpleNamespace(with_keys=with_keys))
        with pytest.raises(MemoryError):
            place.prefetch(1, 2)
    assert (place.kept, place.storage.staged.ahead.held) == ([], 0)
    place.lookup(1, 2)


def test_what_was_read_ahead_is_not_read_again_until_it_changes():
    place = Place()
    place.prefetch(3, 1, 3, 200)
    assert place.cold.reads == [[3, 1, 200]], "each once"
    place.storage._forget_reads(np.array([3]))
    place.lookup(1, 3)
    assert place.cold.reads == [[3, 1, 200], [3]]


def test_a_prefetch_of_rows_in_memory_drops_nothing_that_was_read_ahead():
    place = Place()
    place.lookup(7)
    place.prefetch(1, 2)
    place.prefetch(3, 4)
    place.prefetch(7)
    assert place.kept == [[1, 2], [3, 4]]


def test_a_lookup_does_a_read_ahead_that_waits_for_a_thread():
    busy = Later()
    place = Place(busy)
    place.prefetch(1, 2)
    assert place.cold.reads == []
    place.lookup(1)
    assert place.cold.reads == [[1, 2]]
    busy.go()
    assert place.cold.reads == [[1, 2]], "once"
    assert place.storage.stats().cold_reads == 2
    place.lookup(2)
    assert place.kept == []


def test_a_lookup_raises_the_error_of_a_read_ahead_that_waited_for_a_thread():
    busy = Later()
    place = Place(busy)
    place.prefetch(1, 2)

    def fail():
        raise ColdStoreError("gone")

    place.cold.meanwhile = fail
    with pytest.raises(ColdStoreError, match="gone"):
        place.lookup(1)
    place.cold.meanwhile = lambda: None
    busy.go()
    place.lookup(1, 2)
    assert place.kept == []


@pytest.mark.parametrize(("waits", "expected"), [(0, [2, 1, 2]), (1, [2, 2, 2])])
def test_a_read_ahead_leaves_its_caller_a_core_unless_it_waits_for_the_disk(monkeypatch, waits, expected):
    counted = itertools.count(step=waits)
    monkeypatch.setattr(ahead, "_read_threads", ReadThreads(lambda: next(counted)))
    for module in (parallel, ahead, disk_waits):
        monkeypatch.setattr(module, "cores", lambda: 2)
    place, free = Place(), []
    place.cold.meanwhile = lambda: free.append(free_cores())
    place.prefetch(1, 2)
    place.prefetch(3)
    place.lookup(4)
    assert free == expected


def test_rows_that_are_found_are_counted_wherever_they_were_read():
    place = Place()
    place.prefetch(1, 2, 200)
    assert place.storage.stats().cold_reads == 2, "there is no 200"
    place.lookup(1, 2, 3)
    assert place.storage.stats().cold_reads == 3

    def change():
        place.cold.meanwhile = lambda: None
        with place.storage.access.held():
            place.storage._forget_reads(np.array([4]))

    place.cold.meanwhile = change
    place.lookup(4)
    assert place.storage.stats().cold_reads == 5, "it was read twice"


def test_one_read_brings_so_many_rows_at_most():
    place = Place()
    place.prefetch(*range(20))
    assert place.cold.reads == [list(range(8))]


def test_what_a_lookup_took_the_last_rows_of_is_forgotten_and_its_memory_given_back():
    place = Place()
    place.prefetch(1, 2)
    assert place.storage.staged.ahead.held == 2 * ROW_BYTES
    place.lookup(1)
    assert place.kept == [[1, 2]]
    place.storage._forget_reads(np.array([2]))
    place.lookup(1)
    assert (place.kept, place.storage.staged.ahead.held) == ([], 0), "what changed since need not be taken"


def test_so_many_reads_are_under_way_at_once_and_no_more():
    readers = Later()
    place = Place(readers)
    for key in range(10, 20):
        place.prefetch(key)
    assert len(readers.waiting) == READS_AHEAD
    readers.go()
    place.prefetch(30)
    assert len(readers.waiting) == 1
    assert place.kept == [[11], [30]], "the oldest was forgotten"


def test_a_read_is_kept_until_it_has_ended():
    readers = Later()
    place = Place(readers)
    for key in (10, 20):
        place.prefetch(key)
    readers.waiting.pop()()  # the second one is quicker
    place.prefetch(30)
    readers.go()
    place.lookup(10, 30)
    assert place.cold.reads == [[20], [10], [30]]


def test_a_read_that_fails_is_left_to_the_call_that_wants_it():
    place = Place()

    def fail():
        raise ColdStoreError("gone")

    place.cold.meanwhile = fail
    place.prefetch(3)
    with pytest.raises(ColdStoreError, match="gone"):
        place.lookup(3)
    place.cold.meanwhile = lambda: None
    place.lookup(3)
    assert place.kept == []


def test_without_memory_nothing_is_read_ahead():
    place = Place()
    place.staging.read.used = place.staging.read.total
    place.prefetch(3)
    assert place.cold.reads == []
    place.lookup(3)


def test_a_lookup_during_which_its_variable_was_dropped_gives_nothing_back():
    place = Place()
    place.prefetch(1)
    place.storage._forget_reads(np.array([1]))
    place.storage.end(DroppedState(place.state, "it was dropped"))
    place.storage.give_back_staging()
    place.storage.ahead.looked_up()
    assert (place.storage.staged.ahead.held, place.staging.read.free) == (0, place.staging.read.total)


# After a lookup.


def test_a_read_that_is_asked_for_after_a_lookup_begins_when_one_ends():
    place = Place()
    keys = np.array([5, 4])
    place.reads.prefetch(keys, True)
    keys[:] = 77  # the caller's array is his own again
    assert place.cold.reads == []
    place.lookup(1)
    assert place.cold.reads == [[1], [5, 4]]
    place.lookup(4, 5)
    assert place.cold.reads == [[1], [5, 4]]


def test_distinct_keys_that_were_found_for_a_read_are_not_looked_for_again():
    place, keys = Place(), np.array([5, 4, 5])
    place.reads.prefetch(keys, True)
    place.lookup(1)
    ahead = place.storage.ahead
    known = ahead.distinct(keys.copy())
    assert known is ahead.distinct(keys)
    assert known.keys.tolist() == [5, 4]
    assert known.counts.tolist() == [2, 1]
    for others in ([5, 4], [5, 4, 4], [4, 5, 5]):
        assert ahead.distinct(np.array(others)).keys[0] == others[0]
        assert ahead.distinct(np.array(others)) is not known


def test_only_the_last_reads_wait_and_each_lookup_starts_one():
    place = Place()
    for key in (10, 20, 30):
        place.prefetch(key, after_lookup=True)
    place.lookup(1)
    assert place.cold.reads[1:] == [[20]], "10 was for a batch that came without a lookup"
    place.lookup(1)
    assert place.cold.reads[1:] == [[20], [30]]
    place.lookup(1)
    assert len(place.cold.reads) == 3


def test_rows_of_such_a_lookup_are_made_hot_on_the_readers_thread():
    readers = Later()
    place = Place(readers)
    place.storage.in_flight.expected = False
    place.prefetch(9, after_lookup=True)
    place.lookup(1, 2)
    assert place.hot.size == 0
    readers.go()
    assert place.hot.size == 2
    assert place.cold.reads == [[1, 2], [9]]


def test_rows_that_an_update_is_expected_to_take_are_left_to_it():
    readers = Later()
    place = Place(readers)
    place.prefetch(9, after_lookup=True)
    place.lookup(1, 2)
    readers.go()
    assert (place.hot.size, place.storage.in_flight.left) == (0, 2)
    assert place.cold.reads == [[1, 2], [9]]
    place.prefetch(1, 2, 9)
    assert (place.hot.size, place.storage.in_flight.left) == (0, 2)
    assert place.cold.reads == [[1, 2], [9]], "rows in flight are in memory"


@pytest.mark.parametrize("call", ["lookup", "close"])
def test_any_call_that_comes_first_makes_them_hot_itself(call):
    readers = Later()
    place = Place(readers)
    place.prefetch(9, after_lookup=True)
    place.lookup(1, 2)
    if call == "lookup":
        place.lookup(1)
        assert place.storage.counts.hits == 1
    else:
        with place.storage.closing():
            place.state.close()
    assert place.hot.size == 2
    readers.go()
    assert place.kept == ([] if call == "close" else [[9]])


def test_a_reader_does_not_wait_for_a_variable_that_is_in_use_for_long():
    readers = Later()
    place = Place(readers)
    place.prefetch(9, after_lookup=True)
    place.lookup(1)
    with place.storage.access.held():
        thread = threading.Thread(target=readers.go)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    assert place.cold.reads == [[1]]
    place.lookup(9)


def test_a_lookup_during_a_snapshot_makes_its_rows_hot_itself():
    place = Place(Later())
    with place.storage.access.held():
        place.storage.snapshot.begin()
    place.prefetch(9, after_lookup=True)
    place.lookup(1, 2)
    assert place.hot.size == 2
    place.storage.snapshot.end()


@pytest.mark.slow
@pytest.mark.parametrize("hot_rows", quick([None, 1000]))
def test_reads_ahead_get_memory_while_rows_wait_for_the_disk(
    open_store: Callable[..., kvemb.Store], tmp_path: Path, hot_rows: int | None
) -> None:
    """Hot tables that grow have all memory, or those of a fixed size, which are never asked for it."""
    store, chance = open_store(tmp_path / "store", memory_budget="4MiB"), np.random.default_rng(0)
    tables = [store.get_variable(f"field{number}", dim=16, hot_rows=hot_rows) for number in range(TABLES)]
    for start in range(0, ROWS, 1000):
        for table in tables:
            table.upsert(range(start, start + 1000), np.full((1000, 16), start, np.float32))
    given, until = 0, time.monotonic() + 300
    while given < 20 * TABLES and time.monotonic() < until:
        for table in tables:
            batch, ahead = chance.choice(ROWS, BATCH, replace=False), inside(table).storage.ahead
            table.prefetch(batch)
            given = given + 1 if sum(len(fetch.keys) for fetch in ahead._kept) > BATCH // 8 else 0
            rows = table.lookup(batch)
            assert (rows == (batch // 1000 * 1000)[:, None]).all()
            table.upsert(batch, rows)
    assert given >= 20 * TABLES
