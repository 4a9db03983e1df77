"""The snapshot that is being written: what it keeps, and that its memory is given back when it ends."""

from __future__ import annotations

from blocks import Later

from kvemb.limits import Limits
from kvemb.memory.staging import Staging
from tests.histories import small_spill
from tests.tiers.test_storage import storage_of


def test_what_a_snapshot_holds_is_given_back_when_it_ends():
    staging, executor = Staging(1 << 14), Later()
    storage = storage_of(executor=executor, staging=staging, limits=Limits(**{**small_spill(8), "copied_rows": 100}))
    with storage.access.held():
        storage.snapshot.begin()
    assert storage.snapshot.under_way
    assert storage.staged.copies.held == staging.read.total - staging.read.free > 0
    for _ in range(2):
        storage.snapshot.end()
    assert not storage.snapshot.under_way
    assert staging.read.free == staging.read.total
