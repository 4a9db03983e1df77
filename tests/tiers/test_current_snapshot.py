"""The snapshot that is being written: what it keeps, and that its memory is given back when it ends."""

from __future__ import annotations

from blocks import Later

from kvemb.limits import Limits
from kvemb.memory.budget import Budget
from tests.histories import small_spill
from tests.tiers.test_storage import storage_of


def test_what_a_snapshot_holds_is_owed_until_it_ends_and_keeps_no_thread_busy():
    budget, executor = Budget(1 << 14), Later()
    storage = storage_of(
        executor=executor, lease=budget.lease(), limits=Limits(**{**small_spill(8), "copied_rows": 100})
    )
    with storage.access.held():
        storage.snapshot.begin()
    assert storage.snapshot.under_way
    assert storage.lease.held > 0
    assert not budget.try_grow(budget.total * 15 // 16)
    for _ in range(3):
        if executor.waiting:
            executor.waiting.pop()()
    assert not executor.waiting
    for _ in range(2):
        storage.snapshot.end()
    assert not storage.snapshot.under_way
    assert budget.try_grow(budget.total * 15 // 16)
