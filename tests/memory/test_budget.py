"""The budget of one memory: what is reserved is gone, and nothing is handed out twice."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from kvemb.memory.budget import IDLE_SECONDS, Budget
from kvemb.memory.budgets import Budgets
from kvemb.memory.lease import Lease
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
    lease = budget.lease()
    assert lease.take(budget.free)
    with pytest.raises(OSError, match="full"):
        budget.reserve(1, "rows")
    assert lease.owed == 0
    lease.give_back(1)
    budget.reserve(1, "rows")
    with pytest.raises(ValueError, match="rows needs"):
        budget.reserve(16 << 20, "rows")


def test_what_shares_gave_is_for_growth_until_the_turn_ends():
    budget = Budget(16 << 20)
    giver, grower, lease = Share(64, 4 << 20, 64), Share(64, 1 << 20, 64), budget.lease()
    budget.reserve(budget.free, "rows")
    budget.join(giver)
    budget.join(grower)
    giver.ask(2 << 20)
    budget.shrink(giver, 2 << 20)
    assert lease.available == 0
    assert not lease.take(1)
    assert budget.grow(grower, 1 << 20)
    assert lease.available == 0
    assert not lease.take(1)
    budget.offered(grower, 1 << 20)  # ends a turn
    assert lease.available == 1 << 20
    assert lease.take(1 << 20)
    assert lease.available == 0
    assert not lease.take(1)


@pytest.mark.parametrize("left", ["giver", "grower"])
def test_what_shares_gave_may_be_lent_again_once_a_table_was_dropped(left):
    budget = Budget(8 << 20)
    budget.reserve(8 << 20, "rows")
    giver, grower = Share(1, 4 << 20, 0), Share(1, 4 << 20, 0)
    for share in (giver, grower):
        budget.join(share)
    giver.ask(2 << 20)
    budget.shrink(giver, 2 << 20)
    assert budget.unused == 0
    budget.leave({"giver": giver, "grower": grower}[left])
    assert budget.unused == budget.free == (4 << 20 if left == "giver" else 6 << 20)


def test_growth_leaves_room_for_variables_to_come():
    budget = Budget(16 << 20)
    free = budget.free
    assert not budget.try_grow(free)
    assert budget.try_grow(free - (1 << 20))
    assert not budget.try_grow(1)
    budget.reserve(1 << 20, "rows")


class GivingBack:
    """A lock, after whose first release a lessee gives back all that it holds."""

    def __init__(self, lease: Lease) -> None:
        self._lock, self._lease, self._given = threading.Lock(), lease, False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *failure: object) -> None:
        self._lock.release()
        if not self._given:
            self._given = True
            self._lease.give_back(self._lease.held)


def test_what_is_given_back_at_any_instant_of_a_reservation_is_found(monkeypatch):
    budget = Budget(100)
    lease = budget.lease()
    assert lease.take(100)
    monkeypatch.setattr(budget, "_lock", GivingBack(lease))
    budget.reserve(60, "rows")
    assert (budget.free, lease.held, lease.owed) == (40, 0, 0)


def test_threads_that_lease_grow_and_reserve_never_have_more_than_there_is():
    """Each lessee pays when it is told to, or later; nobody waits for ever, and at the end everything is free."""
    total, now = 10_000, [0.0]
    budget = Budget(total, clock=lambda: now[0])
    seen_low = []

    def lessee(seed: int) -> None:
        chance, lease, told = random.Random(seed), budget.lease(), threading.Event()
        lease.notify = lease.reads.notify = told.set
        for _ in range(300):
            nbytes = chance.randrange(1, 2000)
            lease.take(nbytes)
            assert lease.held >= lease.owed >= 0
            if lease.reads.held:
                lease.reads.give_back(chance.choice([lease.reads.held, lease.reads.owed]))
            elif chance.random() < 0.5:
                lease.reads.take(nbytes // 4)
            if told.is_set() or chance.random() < 0.3:
                told.clear()
                lease.give_back(max(lease.owed, chance.randrange(lease.held + 1)))
            seen_low.append(budget.free)
        lease.end()

    def owner(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(150):
            nbytes = chance.randrange(1, 4000)
            if chance.random() < 0.5:
                budget.reserve(nbytes, "rows")  # two owners never want all
            elif not budget.try_grow(nbytes):
                continue
            assert budget.free >= 0
            budget.give_back(nbytes)

    with ThreadPoolExecutor(5) as threads:
        ends = [threads.submit(work, seed) for seed in range(3) for work in (lessee, owner)][:5]
        for end in ends:
            end.result()
    assert min(seen_low) >= 0
    assert budget.free == total
    assert budget.unused >= total - budget.most_for_reads
    now[0] += IDLE_SECONDS
    assert budget.unused == total


def test_what_is_needed_in_any_case_is_owed_by_tables_that_grow():
    budget, share = Budget(1000), Share(1, 600, 100)
    told = []
    share.notify, share.wake = (lambda: told.append("notify")), (lambda: told.append("wake"))
    budget.reserve(600, "cells")
    budget.join(share)
    budget.use(400)
    assert (budget.free, share.owed, told) == (0, 0, [])
    budget.use(30)
    assert (budget.free, share.owed, told) == (-30, 75, ["notify", "wake"]), "an eighth at least"
    budget.use(40)
    assert share.owed == 75
    budget.shrink(share, 75)
    assert (budget.free, share.owed) == (5, 0)
    budget.use(10_000)
    assert share.owed == 425, "what it can spare"
    budget.give_back(10_000 + 470)
    budget.leave(share)
    assert budget.free == 1000
