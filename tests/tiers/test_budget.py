"""The budgets: what is reserved of a memory is gone, of that one alone."""

from __future__ import annotations

import threading

import pytest

from kvemb.contracts import HOST, Memory
from kvemb.tiers.budget import Budget, Budgets


def test_the_cold_stores_share_is_set_aside_first():
    for total in (4 << 20, 64 << 20, 1 << 30, 1 << 36):
        budgets = Budgets(total)
        assert budgets.cache_bytes > 0
        assert budgets.write_buffer_bytes > 0
        assert budgets.host.free == total - budgets.cache_bytes - budgets.write_buffer_bytes
        assert budgets.host.free > total // 2


def test_each_memory_has_a_budget_of_its_own():
    budgets, device = Budgets(16 << 20), Memory("gpu:0", 1 << 20)
    free = budgets.host.free
    budgets.of(device).reserve(1 << 20, "rows")
    assert (budgets.of(device).free, budgets.host.free) == (0, free)
    assert budgets.of(device) is budgets.of(device)
    assert budgets.of(HOST) is budgets.host
    assert budgets.of(Memory("gpu:1", 1 << 20)).free == 1 << 20
    with pytest.raises(ValueError, match=r"rows needs 1 B, but 0 B of gpu:0's budget of 1\.0 MiB are free; ask"):
        budgets.of(device).reserve(1, "rows")


def test_what_is_reserved_is_gone():
    budget = Budget(16 << 20)
    free = budget.free
    budget.reserve(free - 10, "rows")
    assert budget.free == 10
    assert not budget.try_reserve(11)
    assert budget.try_reserve(10)
    with pytest.raises(ValueError, match=r"hot_rows of 'x' needs 1 B, but 0 B of the store's .* 16\.0 MiB"):
        budget.reserve(1, "hot_rows of 'x'")
    assert budget.free == 0


def test_growth_leaves_room_for_variables_to_come():
    budget = Budget(16 << 20)
    free = budget.free
    assert not budget.try_grow(free)
    assert budget.try_grow(free - (1 << 20))
    assert not budget.try_grow(1)
    assert budget.try_reserve(1 << 20)


def test_threads_never_reserve_a_byte_twice():
    budget = Budget(16 << 20)
    free, taken = budget.free, []

    def take() -> None:
        while budget.try_reserve(1001):
            taken.append(1001)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) + budget.free == free
    assert 0 <= budget.free < 1001
