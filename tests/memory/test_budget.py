"""The budget of one memory: what is reserved is gone, and nothing is handed out twice."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from kvemb.memory.budget import Budget
from kvemb.memory.budgets import Budgets
from kvemb.memory.rebalancer import Share


def test_what_is_reserved_is_gone():
    budget = Budget(16 << 20)
    free = budget.free
    budget.reserve(free - 10, "rows")
    assert budget.free == 10
    with pytest.raises(ValueError, match="rows needs 11 B, but 10 B"):
        budget.reserve(11, "rows")
    budget.reserve(10, "rows")
    with pytest.raises(ValueError, match=r"hot_rows of 'x' needs 1 B, but 0 B of the store's .* 16\.0 MiB"):
        budget.reserve(1, "hot_rows of 'x'")
    assert budget.free == 0


def test_a_reservation_does_not_wait_if_nobody_gives_any_more():
    budget = Budgets(16 << 20, check_giving=Mock(side_effect=OSError("the disk is full"))).host
    share = Share(1, budget.free, 0)
    budget.reserve(budget.free, "cells")
    budget.join(share)
    with pytest.raises(OSError, match="full"):
        budget.reserve(1, "rows")
    assert share.owed == 0
    budget.shrink(share, 1)
    budget.reserve(1, "rows")
    with pytest.raises(ValueError, match="rows needs"):
        budget.reserve(16 << 20, "rows")


def test_what_is_given_back_for_a_reservation_is_not_taken_by_a_table_that_grows():
    budget, giver, grower = Budget(1000), Share(1, 900, 0), Share(1, 100, 0)
    budget.reserve(1000, "cells")
    budget.join(giver)
    budget.join(grower)

    def give() -> None:
        budget.shrink(giver, 100)
        assert not budget.grow(grower, 50)

    giver.wake = give
    budget.reserve(200, "rows")
    assert (budget.free, giver.held) == (0, 700)
    giver.owed = 0
    budget.shrink(giver, 100)
    assert budget.grow(grower, 50), "nobody waits any more"


def test_threads_that_grow_and_reserve_never_have_more_than_there_is():
    budget = Budget(10_000)

    def owner(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            nbytes = chance.randrange(1, 3000)
            if chance.random() < 0.5:
                budget.reserve(nbytes, "rows")  # three owners never want all
            elif not budget.try_take(nbytes):
                continue
            assert budget.free >= 0
            budget.give_back(nbytes)

    with ThreadPoolExecutor(3) as threads:
        for end in [threads.submit(owner, seed) for seed in range(3)]:
            end.result()
    assert budget.free == 10_000


def test_what_is_not_free_is_taken_once_tables_have_given_it_back():
    budget, share = Budget(1000), Share(1, 900, 100)
    budget.reserve(900, "cells")
    budget.join(share)
    assert not budget.try_take(150)
    assert share.owed >= 50
    budget.shrink(share, share.owed)
    assert budget.try_take(150)


def test_what_is_needed_in_any_case_is_owed_by_tables_that_grow():
    budget, share = Budget(1000), Share(1, 600, 100)
    told = []
    share.notify, share.wake = (lambda: told.append("notify")), (lambda: told.append("wake"))
    budget.reserve(600, "cells")
    budget.join(share)
    budget.take(400)
    assert (budget.free, share.owed, told) == (0, 0, [])
    budget.take(30)
    assert (budget.free, share.owed, told) == (-30, 75, ["notify", "wake"]), "an eighth at least"
    budget.take(40)
    assert share.owed == 75
    budget.shrink(share, 75)
    assert (budget.free, share.owed) == (5, 0)
    budget.take(10_000)
    assert share.owed == 425, "what it can spare"
    budget.give_back(10_000 + 470)
    budget.leave(share)
    assert budget.free == 1000
