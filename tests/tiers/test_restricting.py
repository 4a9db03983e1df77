"""A restriction over both tiers: the highest scores stay, and progress is told."""

from __future__ import annotations

import numpy as np
from blocks import SCHEMA, Now, hot_tables_of, rows_of, values_of

from kvemb.backends.memory import MemoryStore
from kvemb.limits import Limits
from kvemb.rows.block import DIRTY
from kvemb.store_state import StoreState
from kvemb.tiers.budget import Budget
from kvemb.tiers.restricting import keep_highest, would_leave
from kvemb.tiers.scoring import Scoring
from kvemb.tiers.storage import TieredStorage
from tests.histories import small_spill


def test_the_highest_scores_of_both_tiers_stay_and_of_equal_ones_the_larger_key(tmp_path):
    storage = TieredStorage(
        SCHEMA, hot_tables_of(16), MemoryStore(SCHEMA), state=StoreState("test"), executor=Now(), readers=Now(),
        slot_rows=8, lease=Budget(1 << 24).lease(), limits=Limits(**small_spill(8)),
    )  # fmt: skip
    keys, told = np.arange(100), []
    with storage.writing():
        at = storage.locate(keys)
        at.rows.put(slice(None), rows_of(keys, 1.0, flags=DIRTY))
        at.rows.scores[:] = keys // 10  # ten of each score
        storage.admit(at)
    assert 0 < storage.stats().rows_hot < 100
    assert would_leave(storage, Scoring(None, storage.hot_tables), 25, tmp_path, None) == 75
    assert storage.size == 100
    with storage.writing(without_snapshot=True):
        keep_highest(
            storage, Scoring(None, storage.hot_tables), 25, tmp_path, lambda done, total: told.append((done, total))
        )
    assert storage.size == 25
    assert sorted(key for rows in storage.scan(10) for key in values_of(rows)) == [*range(75, 100)]
    assert told[-1] == (175, 175)
    assert storage.check() == []
    assert list(tmp_path.iterdir()) == []
