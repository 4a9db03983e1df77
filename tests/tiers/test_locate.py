"""Finding rows wherever they are, also while others move them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from blocks import SCHEMA, Now, Watched, hot_tables_of, rows_of, values_of

from kvemb.errors import Closed
from kvemb.memory.staging import Holding, Pool
from kvemb.rows.block import DIRTY, REMOVED
from kvemb.stats import Stats
from kvemb.store_state import StoreState
from kvemb.tiers.access import TableAccess
from kvemb.tiers.fetch import Fetch
from kvemb.tiers.in_flight import RowsInFlight
from kvemb.tiers.locate import Locator
from kvemb.tiers.spill import SpillBuffer


class Place:
    """A locator over every place: key 1 is hot, 2 waits to be spilled, 3 is cold, 4 waits to be removed, 5 is not."""

    def __init__(self):
        self.hot, self.cold, self.state = hot_tables_of(), Watched(), StoreState("test")
        pool = Pool(1 << 20)
        self.in_flight = RowsInFlight(Holding(pool), self.state, lambda found, by_score: None)
        self.access = TableAccess(self.state, self.in_flight)
        self.spill = SpillBuffer(SCHEMA, 8, Now(), self.cold.write, lambda keys: None, self.state.poison)
        list(self.hot.insert(rows_of([1], 1.0), None))
        self.spill.append([rows_of([2], 2.0, flags=DIRTY), rows_of([4], flags=DIRTY | REMOVED)])
        self.cold.write(rows_of([2, 3, 4], 3.0))
        self.locator = Locator(self.hot, self.spill, self.in_flight, self.cold, self.access, Stats())

    def found(self, keys):
        with self.access.held():
            at = self.locator.locate(np.array(keys))
            there = at.only(at.exists)
            return at, values_of(there.rows)


def test_rows_are_found_in_every_place_and_the_newest_counts():
    place = Place()
    at, rows = place.found([5, 4, 3, 2, 1])
    assert at.present.tolist() == [False, False, True, True, True]
    assert at.hot.tolist() == [4]
    assert at.cold.tolist() == [0, 1, 2, 3]
    assert rows == {3: 3.0, 2: 2.0}
    assert at.known.all()
    assert place.cold.reads == [[3, 5]], "only what is nowhere else, in key order"


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
        place.locator.locate(np.array([3]))
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


def test_rows_that_went_hot_during_the_read_are_hot():
    place = Place()

    def promote():
        with place.access.held():
            list(place.hot.insert(rows_of([3], 9.0), None))

    place.cold.meanwhile = promote
    at, rows = place.found([3])
    assert at.hot.tolist() == [0]
    assert rows == {}


@pytest.mark.parametrize("others", ["nobody", "somebody"])
def test_rows_are_looked_for_again_only_where_somebody_was_in_during_the_read(others):
    place, looks = Place(), []
    find = place.hot.find

    def counted(keys, owners):
        looks.append(keys.tolist())
        return find(keys, owners)

    def enter():
        with place.access.held():
            pass

    place.hot.find = counted
    place.cold.meanwhile = enter if others == "somebody" else lambda: None
    at, rows = place.found([3, 5, 1])
    assert (at.present.tolist(), rows) == ([True, False, True], {3: 3.0})
    assert len(looks) == (2 if others == "somebody" else 1)
    assert place.cold.reads == [[3, 5]]


def test_a_store_that_was_closed_during_the_read_is_told_and_no_read_is_kept():
    place = Place()
    place.found([3, 5])
    place.cold.meanwhile = place.state.close
    with pytest.raises(Closed):
        place.found([3])
    assert place.locator._reads == []


def test_another_cold_store_takes_the_place_of_the_first():
    place, other = Place(), Watched()
    fetch = Fetch(np.array([3]))
    place.locator.ahead.append(fetch)
    place.locator.read(fetch)
    assert place.found([3])[1] == {3: 3.0}
    assert place.cold.reads == [[3]], "what was read ahead is not read again"
    other.write(rows_of([3], 6.0))
    place.locator.read_from(other)
    assert place.found([3])[1] == {3: 6.0}
