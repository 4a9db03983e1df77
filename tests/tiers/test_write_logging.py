"""What the log of writes is given: the rows as they are after the call, each once, wherever they are."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import InFlight, hot_tables_of, rows_of

from kvemb.errors import ColdStoreError, Poisoned
from kvemb.store_state import StoreState
from kvemb.tiers.access import TableAccess
from kvemb.tiers.located import Located
from kvemb.tiers.write_logging import WriteLogging


class Log:
    """The journal, in which it keeps the rows that it was given of the variable "users"."""

    def __init__(self):
        self.written = []

    def rows(self, name, rows, step):
        assert name == "users"
        self.written += [(pair, step) for pair in zip(rows.keys.tolist(), rows.values[:, 0].tolist(), strict=True)]

    def all(self, step):
        """Every row by key; each was given once, with this step."""
        assert {at for _, at in self.written} <= {step}
        pairs = [pair for pair, _ in self.written]
        assert len(pairs) == len(dict(pairs))
        return dict(pairs)


class Place:
    """Rows 0 to 4 hot, in so many tables, whose values are their keys; and a log."""

    def __init__(self, tables=1, *, logged=True):
        self.hot, self.log = hot_tables_of(tables=tables), Log()
        for key in range(5):
            list(self.hot.insert(rows_of([key], float(key)), self.hot.owners(np.array([key]))))
        self.state = StoreState("test")
        access = TableAccess(self.state, InFlight())
        self.logging = WriteLogging(self.log if logged else None, "users", self.hot, access)


def located(hot, keys):
    """Where keys are of which the odd ones above 4 are cold."""
    keys = np.array(keys)
    owners = hot.owners(keys)
    cells = hot.find(keys, owners)
    cold = np.flatnonzero(cells < 0)
    certain = np.ones(len(cold), np.bool_)
    return Located(keys, owners, cells, cold, rows_of(keys[cold], 9.0), certain, certain)


@pytest.mark.parametrize("tables", [1, 2])
def test_located_rows_are_logged_hot_or_not(tables):
    place = Place(tables)
    place.logging.located(located(place.hot, [3, 7, 0, 8]), 5)
    assert place.log.all(5) == {3: 3.0, 0: 0.0, 7: 9.0, 8: 9.0}


@pytest.mark.parametrize("tables", [1, 2])
def test_a_hot_row_is_logged_once_however_often_its_key_is_given(tables):
    place = Place(tables)
    keys = np.array([1, 9, 2, 1, 8, 1, 4])
    place.logging.hot(keys, place.hot.owners(keys), np.array([1, 4]), 6)
    assert place.log.all(6) == {1: 1.0, 2: 2.0, 4: 4.0}


def test_a_store_without_a_log_is_read_for_none(monkeypatch):
    place = Place(logged=False)
    at, keys = located(place.hot, [1, 7]), np.array([1])
    assert (place.logging.active, Place().logging.active) == (False, True)
    monkeypatch.setattr(place.hot, "read", lambda *_: pytest.fail("rows were read for no log"))
    place.logging.located(at, 1)
    place.logging.hot(keys, None, np.empty(0, np.int64), 1)
    place.logging.rows(at.rows, 1)
    place.logging.removed(keys, 1)
    place.logging.cleared(1)
    place.logging.commit()


def test_a_log_that_cannot_be_written_poisons_the_store():
    place, failure = Place(), ColdStoreError("full")

    def commit():
        raise failure

    place.log.commit = commit
    with pytest.raises(Poisoned):
        place.logging.commit()
    assert place.state.cause is failure
