"""A restriction over both tiers: the highest scores stay, and progress is told."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from blocks import SCHEMA, hot_tables_of, rows_of, values_of
from crashes import copy_of_open

import kvemb
from kvemb.backends.memory_store import MemoryStore
from kvemb.handle import inside
from kvemb.limits import Limits
from kvemb.memory.staging import Staging
from kvemb.operations.restricting import Restriction
from kvemb.operations.scoring import Scorer
from kvemb.operations.selection import ScoreSpool
from kvemb.rows.block import DIRTY
from kvemb.store_state import StoreState
from kvemb.threads.pool import Here
from kvemb.tiers.storage import TieredStorage
from tests.histories import small_spill


def test_the_highest_scores_of_both_tiers_stay_and_of_equal_ones_the_larger_key(tmp_path):
    storage = TieredStorage(
        hot_tables_of(16), MemoryStore(SCHEMA), state=StoreState("test"), executor=Here(), readers=Here(),
        memtable_rows=64, staging=Staging(1 << 24), limits=Limits(**small_spill(8)),
    )  # fmt: skip
    keys, told = np.arange(100), []
    with storage.writing():
        at = storage.locate(keys)
        at.rows.put(slice(None), rows_of(keys, 1.0, flags=DIRTY))
        at.rows.scores[:] = keys // 10  # ten of each score
        storage.promote(at)
    assert 0 < storage.stats().rows_hot < 100
    with closing(Restriction(storage, Scorer(None, storage.hot_tables), tmp_path)) as restriction:
        assert restriction.count_removals(25, None) == 75
    assert storage.size == 100
    with (
        closing(Restriction(storage, Scorer(None, storage.hot_tables), tmp_path)) as restriction,
        storage.writing_without_snapshot(),
    ):
        restriction.keep_highest(25, lambda done, total: told.append((done, total)))
    assert storage.size == 25
    assert sorted(key for rows in storage.scan(10) for key in values_of(rows)) == [*range(75, 100)]
    assert told[-1] == (175, 175)
    assert storage.check() == []
    assert list(tmp_path.iterdir()) == []


def test_one_that_fails_between_two_batches_is_finished_by_the_next(open_store, tmp_path, monkeypatch):
    store = open_store(tmp_path / "store", durability="write")
    table = store.get_variable("table", dim=2, hot_rows=32, restrict_policy=kvemb.TimestampRestrictPolicy("steps"))
    keys = np.arange(100)
    table.upsert(keys, np.ones((100, 2), np.float32))
    for last in range(4):
        table.lookup(keys[25 * last :])  # so that each quarter has a score of its own
    below, prepare, batches = ScoreSpool.below, inside(table).hot_tables.prepare, []

    def short(*arguments):
        if len(batches) == 2:
            raise MemoryError("gpu:0 has no room")
        return prepare(*arguments)

    def in_tens(spool, limit):
        for found in below(spool, limit):
            for at in range(0, len(found), 10):
                batches.append(found[at : at + 10])
                yield batches[-1]

    monkeypatch.setattr(ScoreSpool, "below", in_tens)
    monkeypatch.setattr(inside(table).hot_tables, "prepare", short)
    with pytest.raises(MemoryError, match="no room"):
        table.restrict(60)
    monkeypatch.undo()
    assert table.size() == 90
    assert table.export()[0].tolist() == [*range(10, 100)]
    table.upsert([200], np.ones((1, 2), np.float32))  # is durable, and so is what was done before it
    copy_of_open(store.path, tmp_path / "crashed")
    with open_store(tmp_path / "crashed") as crashed:
        assert crashed.variables["table"].export()[0].tolist() == [*range(10, 100), 200]
    assert table.restrict(60) == 31
    assert table.export()[0].tolist() == [*range(41, 100), 200]
    store.flush()
    store.check(deep=True)
