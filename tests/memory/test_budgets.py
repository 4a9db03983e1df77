"""The budgets of a store: what is reserved of a memory is gone, of that one alone."""

from __future__ import annotations

import pytest

from kvemb.contracts import HOST, Memory
from kvemb.memory.budgets import Budgets


def test_staging_is_taken_first():
    for total in (4 << 20, 64 << 20, 1 << 30, 1 << 36):
        budgets = Budgets(total)
        assert budgets.host.free == budgets.for_cells(HOST) == total - budgets.staging.total
        assert budgets.cache_bytes > 0


def test_a_cold_store_that_caches_what_it_reads_takes_an_eighth():
    budgets = Budgets(32 << 30)
    free, cells = budgets.host.free, budgets.for_cells(HOST)
    for cached in (True, True, False):
        budgets.opened(cached=cached)
        assert (free - budgets.host.free, cells - budgets.for_cells(HOST)) == (cached * 4 << 30, cached * 4 << 30)


def test_each_memory_has_a_budget_of_its_own():
    budgets, device = Budgets(16 << 20), Memory("gpu:0", 1 << 20)
    free = budgets.host.free
    budgets.of(device).reserve(1 << 20, "rows")
    assert (budgets.of(device).free, budgets.host.free) == (0, free)
    assert budgets.of(device) is budgets.of(device)
    assert budgets.of(HOST) is budgets.host
    assert budgets.of(Memory("gpu:1", 1 << 20)).free == budgets.for_cells(device) == 1 << 20
    with pytest.raises(ValueError, match=r"rows needs 1 B, but 0 B of gpu:0's budget of 1\.0 MiB are free; ask"):
        budgets.of(device).reserve(1, "rows")


def test_a_devices_budget_is_what_the_store_was_opened_with():
    budgets = Budgets(16 << 20, device_memory=2 << 20)
    assert budgets.of(Memory("gpu:0", 1 << 20)).free == budgets.of(Memory("gpu:1", 1 << 30)).free == 2 << 20
    assert budgets.host.total == 16 << 20
