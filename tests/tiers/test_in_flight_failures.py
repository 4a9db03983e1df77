"""Rows in flight when something fails: nothing is lost, nothing older is read, and their memory is given back."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import Watched, rows_of, values_of

from kvemb.errors import ColdStoreError, Poisoned
from kvemb.rows.block import DIRTY, RowBlock
from kvemb.rows.hashing import KeyIndex
from kvemb.tiers.located import Located
from tests.tiers import test_ahead


class Full(Watched):
    """A cold store on a disk that is full from some moment on."""

    full = False

    def write(self, rows: RowBlock) -> int:
        """See contracts.ColdStore."""
        if self.full:
            raise ColdStoreError("no space left on device")
        return super().write(rows)


class Place(test_ahead.Place):
    """The same over such a disk. 64 rows can wait in memory."""

    def __init__(self) -> None:
        super().__init__(cold=Full())

    def update(self, value: float, *keys: int) -> None:
        with self.storage.updating():
            found = self.storage.locate(np.array(keys))
            found.rows.values[:], found.rows.flags[:] = value, DIRTY
            self.storage.promote(found)

    def meanwhile(self, *keys: int) -> None:
        """Let another call look these keys up during the next cold read, and then let the disk be full."""

        def look_up() -> None:
            self.cold.meanwhile = lambda: None
            self.lookup(*keys)
            assert self.storage.in_flight.left == len(keys)
            self.cold.full = True

        self.cold.meanwhile = look_up

    def values(self, *keys: int) -> dict[int, float]:
        with self.storage.reading():
            found = self.storage.locate(np.array(keys))
            return values_of(found.with_cold(found.exists).rows)


@pytest.mark.parametrize("call", ["remove", "replace"])
def test_a_change_that_cannot_be_written_is_read_although_older_rows_were_in_flight(call):
    place, keys = Place(), range(80)
    storage = place.storage

    def change() -> None:
        with storage.writing():
            found = storage.locate(np.array(keys))
            if call == "remove":
                storage.remove(found.keys[found.present])
            else:
                storage.replace(found, rows_of(keys, 7.0, flags=DIRTY), 1)

    place.meanwhile(*keys)
    change()
    assert place.storage.state.cause is not None
    with pytest.raises(Poisoned):
        change()
    assert place.values(*keys) == ({} if call == "remove" else dict.fromkeys(keys, 7.0))
    assert storage.size == (20 if call == "remove" else 100)


def test_rows_that_cannot_be_kept_for_lack_of_memory_go_hot_and_what_was_paid_for_them_is_given_back(monkeypatch):
    place = Place()

    def fail(found: Located, chosen: object) -> Located:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Located, "cold_alone", fail)
        place.lookup(1, 2)
    assert place.storage.state.cause is None
    with place.storage.access.held():
        assert (place.storage.in_flight.left, place.storage.staged.in_flight.held) == (0, 0)
    assert place.storage.hot_tables.size == 2
    assert place.storage.check() == []


def test_an_index_that_could_not_be_filled_is_made_again_so_that_no_row_in_flight_replaces_a_newer_one(monkeypatch):
    place = Place()
    place.lookup(1, 2, 3)

    def fail(index: KeyIndex, keys: object, start: int, stop: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(KeyIndex, "put", fail)
        with pytest.raises(MemoryError):
            place.update(5.0, 1, 2)
    place.update(7.0, 1, 2)
    assert place.storage.in_flight.left == 1
    assert place.cold.reads == [[1, 2, 3]]
    place.lookup(*range(20, 90))
    assert place.storage.check() == []
    assert place.values(1, 2) == dict.fromkeys((1, 2), 7.0)
