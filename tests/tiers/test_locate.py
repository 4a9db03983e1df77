"""Finding rows wherever they are, also while others move them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from blocks import SCHEMA, Later, Watched, hot_tables_of, rows_of, values_of

from kvemb.errors import Closed, ColdStoreError
from kvemb.limits import DEFAULT
from kvemb.memory.budget import GrowingPart
from kvemb.memory.memtables import MemtableMemory, Memtables
from kvemb.memory.staging import Holding
from kvemb.rows.block import DIRTY, REMOVED, RowBlock
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.tiers.access import TableAccess
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.locate import Locator, read_together


class Place:
    """A locator over every place: key 1 is hot, 2 is in a memtable, 3 is cold, 4 is removed in a memtable, 5 is not."""

    def __init__(self):
        self.hot, self.cold, self.state = hot_tables_of(), Watched(), StoreState("test")
        pool = GrowingPart(1 << 20)
        self.in_flight = RowsInFlight(Holding(pool), self.state, lambda found, by_score: None)
        self.access = TableAccess(self.state, self.in_flight)
        made = MemtableMemory(1 << 20), 100, Later(), self.cold.write, lambda keys: None, self.state.poison
        self.memtables = Memtables(SCHEMA, *made, DEFAULT)
        list(self.hot.insert(rows_of([1], 1.0), None))
        self.memtables.add([rows_of([2], 2.0, flags=DIRTY), rows_of([4], flags=DIRTY | REMOVED)])
        self.cold.write(rows_of([2, 3, 4], 3.0))
        self.locator = Locator(self.hot, self.memtables, self.in_flight, self.cold, self.access, Stats())

    def locate(self, *keys):
        """Locate keys as TieredStorage does."""
        search = self.locator.begin(np.array(keys))
        if search.reads:
            with self.access.released():
                read_together([search])
        return self.locator.end(search)

    def found(self, keys):
        with self.access.held():
            at = self.locate(*keys)
            there = at.with_cold(at.exists)
            return at, values_of(there.rows)


def test_rows_are_found_in_every_place_and_the_newest_counts():
    place = Place()
    at, rows = place.found([5, 4, 3, 2, 1])
    assert at.present.tolist() == [False, False, True, True, True]
    assert at.hot.tolist() == [4]
    assert at.cold.tolist() == [0, 1, 2, 3]
    assert rows == {3: 3.0, 2: 2.0}
    assert at.known.all()
    assert place.cold.reads == [[5, 3]], "only what is nowhere else"


def test_the_lock_is_free_while_cold_rows_are_read_and_held_again_after():
    place, free = Place(), []

    def look():
        def enter():
            with place.access.held_if_free(0.01) as held:
                free.append(held)

        other = threading.Thread(target=enter)
        other.start()
        other.join()

    place.cold.meanwhile = look
    with place.access.held():
        place.locate(3)
        look()
    assert free == [True, False]


def test_rows_that_changed_during_the_read_are_read_again():
    place = Place()

    def change():
        place.cold.meanwhile = lambda: None
        with place.access.held():
            place.cold.write(rows_of([3], 8.0))
            place.locator.forget(np.array([3]))

    place.cold.meanwhile = change
    assert place.found([3])[1] == {3: 8.0}
    assert place.cold.reads == [[3], [3]]


def test_of_rows_that_were_removed_during_the_read_nothing_stays():
    place = Place()

    def change():
        place.cold.meanwhile = lambda: None
        with place.access.held():
            place.cold.write(rows_of([3], flags=DIRTY | REMOVED))
            place.locator.forget(np.array([3]))

    place.cold.meanwhile = change
    at, _ = place.found([3])
    assert at.exists.tolist() == [False]
    assert at.known.tolist() == [True]
    assert not any(column.any() for column in at.rows.columns[1:])


def test_rows_that_went_hot_during_the_read_are_hot():
    place = Place()

    def promote():
        with place.access.held():
            list(place.hot.insert(rows_of([3], 9.0), None))

    place.cold.meanwhile = promote
    at, rows = place.found([3])
    assert at.hot.tolist() == [0]
    assert rows == {}


def test_rows_that_left_memory_during_the_read_are_read_with_the_lock():
    place = Place()

    def evict():
        place.cold.meanwhile = lambda: None
        with place.access.held():
            place.cold.write(rows_of([1], 6.0))
            place.locator.forget(np.array([1]))
            place.hot.remove(np.array([1]), None)

    place.cold.meanwhile = evict
    at, rows = place.found([1, 3])
    assert (at.present.tolist(), rows) == ([True, True], {1: 6.0, 3: 3.0})
    assert place.cold.reads == [[3], [1]]


@pytest.mark.parametrize("change", [False, True])
def test_rows_of_several_variables_are_read_in_one_job_without_their_locks(change):
    places, free = [Place(), Place()], []

    def meanwhile():
        for place in places:
            with place.access.held():
                free.append(place)
        if change:
            places[0].cold.meanwhile = lambda: None
            with places[0].access.held():
                places[0].cold.write(rows_of([3], 8.0))
                places[0].locator.forget(np.array([3]))

    places[0].cold.meanwhile = meanwhile
    searches = []
    for place in places:
        with place.access.held():
            searches.append(place.locator.begin(np.array([5, 3]), hot=False))
    read_together(searches)
    for place, search, value in zip(places, searches, [8.0 if change else 3.0, 3.0], strict=True):
        with place.access.held():
            at = place.locator.end(search)
        assert at.present.tolist() == [False, True]
        assert at.rows.values[1].tolist() == [value] * 2
    assert free == places
    assert [place.cold.reads for place in places] == [[[5, 3], [3]] if change else [[5, 3]], [[5, 3]]]


def test_a_read_that_fails_is_told_by_its_own_search():
    places = [Place(), Place()]

    def fail():
        raise ColdStoreError("gone")

    places[0].cold.meanwhile = fail
    searches = []
    for place in places:
        with place.access.held():
            searches.append(place.locator.begin(np.array([3])))
    read_together(searches)
    with places[0].access.held(), pytest.raises(ColdStoreError, match="gone"):
        places[0].locator.end(searches[0])
    with places[1].access.held():
        assert places[1].locator.end(searches[1]).exists.tolist() == [True]


def test_a_search_that_nobody_ends_keeps_no_store_from_closing():
    place = Place()
    with place.access.held():
        search = place.locator.begin(np.array([3]))
        place.locator.wait_for_reads()
    read_together([search])
    assert place.cold.reads == []
    with place.access.held():
        assert place.locator.end(search).exists.tolist() == [True], "read with the lock"


def test_a_store_that_was_closed_during_the_read_is_told_and_no_read_is_kept():
    place = Place()
    place.found([3, 5])
    place.cold.meanwhile = place.state.close
    with pytest.raises(Closed):
        place.found([3])
    assert len(place.locator._reads) == 0


def test_another_cold_store_takes_the_place_of_the_first():
    place, other = Place(), Watched()
    fetch = Fetch(RowBlock.with_keys(SCHEMA, np.array([3])))
    place.locator.ahead.append(fetch)
    place.locator.read(fetch)
    assert place.found([3])[1] == {3: 3.0}
    assert place.cold.reads == [[3]], "what was read ahead is not read again"
    other.write(rows_of([3], 6.0))
    place.locator.read_from(other)
    assert place.found([3])[1] == {3: 6.0}
