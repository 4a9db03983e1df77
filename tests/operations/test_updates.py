"""What each call does to rows: duplicates, missing keys, uses, and chunks that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from blocks import SCHEMA, hot_tables_of, rows_of

import kvemb
from kvemb import registry
from kvemb.backends.memory_store import MemoryStore
from kvemb.limits import Limits
from kvemb.memory.staging import Staging
from kvemb.operations.row_factory import RowFactory
from kvemb.operations.scoring import Scorer
from kvemb.operations.updates import TableUpdates
from kvemb.store_state import StoreState
from kvemb.threads.pool import Here
from kvemb.tiers.storage import TieredStorage
from tests.histories import small_spill


@pytest.fixture(params=[65_536, 2], ids=["whole", "in chunks"])
def table(request):
    """Operations on a table of 16 hot rows; missing keys read as 0.5."""
    hot = hot_tables_of(16)
    storage = TieredStorage(
        hot, MemoryStore(SCHEMA), state=StoreState("test"), executor=Here(), readers=Here(),
        memtable_rows=64, staging=Staging(1 << 24), limits=Limits(**small_spill(8), call_rows=request.param),
    )  # fmt: skip
    factory = RowFactory(SCHEMA, kvemb.Constant(0.5), kvemb.optimizers.SGD(0.5), registry.row_kernels())
    return TableUpdates(storage, factory, Scorer(None, hot), None)


def values(numbers):
    return np.repeat(np.array(numbers, np.float32)[:, None], 2, axis=1)


def look(table, keys, *, touch=False):
    """The first element of each row, None where there is none."""
    keys = np.array(keys, np.int64)
    out, exists = np.empty((len(keys), 2), np.float32), np.empty(len(keys), np.bool_)
    table.lookup(keys, out, exists, touch=touch)
    assert (out[~exists] == 0.5).all()
    return [float(row[0]) if there else None for row, there in zip(out, exists, strict=True)]


def fill(table, count=40):
    table.upsert(np.arange(count), values(range(count)))


def test_rows_are_read_back_hot_and_cold_and_missing_ones_read_as_the_initializer(table):
    fill(table)
    assert look(table, [39, 3, 77, 3, 0]) == [39.0, 3.0, None, 3.0, 0.0]
    assert table._storage.size == 40, "a lookup inserts nothing"


def test_whole_rows_are_put_where_they_are(table):
    fill(table, 10)
    table.put(rows_of([3, 70], 8.0, score=6.0), 99)
    assert look(table, [3, 70]) == [8.0, 8.0]
    assert table.scores(np.array([3, 70])).tolist() == [6.0, 6.0]
    assert table._storage.step >= 99


def test_rows_are_made_hot_when_they_are_asked_for(table):
    fill(table)
    table.use(np.array([0]))
    table.warm(np.array([0, 99]))
    assert table._hot_tables.find(np.array([0]), None)[0] >= 0
    assert table._storage.size == 40


def test_new_rows_are_in_no_tier(table):
    rows = table.new_rows(np.array([5]), values([3]))
    assert (rows.flags[0], rows.scores[0], table._storage.size) == (0, 1.0, 0)


def test_rows_that_wait_to_be_written_are_changed_and_offered_again(table):
    fill(table, 20)  # of which 4 wait
    storage = table._storage
    waiting = np.setdiff1d(np.arange(20), storage.hot_tables.keys())
    assert storage.stats().rows_waiting == len(waiting) == 4
    before = storage.counts.promotions
    table.apply_gradients(waiting, values([2.0] * len(waiting)))  # by SGD(0.5)
    assert storage.counts.promotions == before + 4
    table.upsert(waiting[:1], values([90.0]))
    table.accum(waiting[1:2], values([0.0]), values([7.0]), np.array([True]))
    expected = [90.0, waiting[1] + 6.0, *(waiting[2:] - 1.0)]
    assert look(table, waiting) == expected
    assert look(table, waiting, touch=True) == expected
    assert np.isin(waiting, storage.hot_tables.keys()).any()
    storage.write_dirty()
    assert look(table, waiting) == expected
