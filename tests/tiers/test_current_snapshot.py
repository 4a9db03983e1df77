"""The snapshot that is being written: what it keeps, and that its memory is given back when it ends."""

from __future__ import annotations

import numpy as np
from blocks import Later, rows_of

from kvemb.limits import Limits
from kvemb.memory.budget import Budget
from kvemb.rows.block import DIRTY
from tests.histories import small_spill
from tests.tiers.test_storage import put, rows, storage_of


def test_a_snapshot_keeps_what_is_dirty_and_ends():
    storage = storage_of()
    put(storage, [1, 2])
    with storage.held():
        snapshot = storage.snapshot.begin()
    assert storage.snapshot.under_way
    assert len(snapshot.keys()) == 2
    with storage.writing():
        storage.replace(storage.locate(np.array([1])), rows_of([1], 2.0, flags=DIRTY), 1)
    storage.snapshot.end()
    storage.snapshot.end()
    assert not storage.snapshot.under_way
    assert rows(storage, [1, 2]) == {1: 2.0, 2: 1.0}
    assert storage.check() == []


def test_what_a_snapshot_holds_is_owed_until_it_ends_and_keeps_no_thread_busy():
    budget, executor = Budget(1 << 14), Later()
    storage = storage_of(
        executor=executor, lease=budget.lease(), limits=Limits(**{**small_spill(8), "copied_rows": 100})
    )
    with storage.held():
        storage.snapshot.begin()
    assert storage.lease.held > 0
    assert not budget.try_grow(budget.total * 15 // 16)
    for _ in range(3):
        if executor.waiting:
            executor.waiting.pop()()
    assert not executor.waiting
    storage.snapshot.end()
    assert budget.try_grow(budget.total * 15 // 16)
