"""The table "Where a row is" of ARCHITECTURE.md, walked line by line: where the copy of a row that counts is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvemb
from kvemb.handle import inside
from kvemb.rows.block import RowBlock

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
SECTION = PAGE.read_text().split("## Where a row is", 1)[1].split("\n## ", 1)[0]
LINES = re.findall(r"^\| ([a-z ]+) \| ([a-z, ]+) \| ([a-z ]+) \|$", SECTION, re.MULTILINE)[1:]
KEY, OTHERS = np.array([7]), np.arange(1000, 1064)
ONE = np.ones((1, 1), np.float32)


class Walk:
    """A variable with cells for 16 rows, of whose rows one is followed."""

    def __init__(self, store: kvemb.Store) -> None:
        self.variable = store.get_variable("table", dim=1, hot_rows=16, optimizer=kvemb.optimizers.SGD(1.0))
        self.storage = inside(self.variable).storage

    @property
    def place(self) -> str:
        """Where the copy of the row that counts is."""
        storage, row = self.storage, RowBlock(self.storage.schema, 1)
        row.keys[:] = KEY
        with storage.access.held(land=False):
            if storage.hot_tables.find(KEY, storage.hot_tables.owners(KEY))[0] >= 0:
                return "a cell"
            known, exists = np.zeros((2, 1), np.bool_)
            storage.in_flight.read(row, known, exists)
            if known[0]:
                return "flight" if exists[0] else "nowhere"
            storage.memtables.read(row, known, exists)
            if known[0]:
                return "a memtable" if exists[0] else "nowhere"
            return "a file" if storage.cold.read(KEY)[1][0] else "nowhere"

    def go(self, place: str) -> None:
        """Bring the row to a place."""
        if place == "nowhere":
            return
        self.update()
        if place != "a cell":
            self.evict()
        if place in ("a file", "flight"):
            self.write()
        if place == "flight":
            self.look()

    # What happens.

    def update(self) -> None:
        self.variable.apply_gradients(KEY, ONE)

    def look(self) -> None:
        self.storage.in_flight.expected = True
        self.variable.lookup(KEY)

    def look_without_updates(self) -> None:
        self.storage.in_flight.expected = False
        self.variable.lookup(KEY)

    def evict(self) -> None:
        """Have rows of other keys, used later, take all cells."""
        for keys in np.split(OTHERS, 4):
            self.variable.upsert(keys, np.ones((len(keys), 1), np.float32))

    def evict_clean(self) -> None:
        with self.storage.writing():
            self.storage.write_dirty()
        self.evict()

    def write(self) -> None:
        with self.storage.writing():
            self.storage.flush_memtables()

    def put(self) -> None:
        """Put a whole row, as a load does."""
        row = RowBlock(self.storage.schema, 1)
        row.keys[:] = KEY
        inside(self.variable).operations.put(row, 1)


HAPPENS: dict[str, Callable[[Walk], object]] = {
    "an update": Walk.update,
    "a lookup": Walk.look,
    "a lookup, where updates follow none": Walk.look_without_updates,
    "any other call": lambda walk: walk.variable.stats,
    "rows that outscore it come": Walk.evict,
    "it is written, then rows that outscore it come": Walk.evict_clean,
    "its memtable is written": Walk.write,
    "a load of the whole row": Walk.put,
    "a removal": lambda walk: walk.variable.remove(KEY),
    "a clear": lambda walk: walk.variable.clear(),
}


def test_the_table_has_every_place_and_all_that_happens():
    places = {"nowhere", "a cell", "flight", "a memtable", "a file"}
    assert {before for before, _, _ in LINES} == {after for _, _, after in LINES} == places
    assert {what for _, what, _ in LINES} == set(HAPPENS)


@pytest.mark.independent
@pytest.mark.parametrize(("before", "what", "after"), LINES)
def test_a_row_goes_where_the_table_says(store, before, what, after):
    walk = Walk(store)
    walk.go(before)
    assert walk.place == before
    HAPPENS[what](walk)
    assert walk.place == after
    rows = 0 if after == "nowhere" else 1
    assert int(walk.variable.lookup(KEY, return_exists=True)[1][0]) == rows
