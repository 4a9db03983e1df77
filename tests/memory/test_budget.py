"""The budgets: what is reserved of a memory is gone, of that one alone."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

import pytest

from kvemb.contracts import HOST, Memory
from kvemb.memory.budget import IDLE_SECONDS, Budget
from kvemb.memory.budgets import Budgets
from kvemb.memory.lease import Lease
from kvemb.memory.rebalancer import Share


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


def test_a_devices_budget_is_what_the_store_was_opened_with():
    budgets = Budgets(16 << 20, device_memory=2 << 20)
    assert budgets.of(Memory("gpu:0", 1 << 20)).free == budgets.of(Memory("gpu:1", 1 << 30)).free == 2 << 20
    assert budgets.host.total == 16 << 20


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
    def refuse() -> None:
        raise OSError("the disk is full")

    budget = Budgets(16 << 20, check_giving=refuse).host
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


def test_threads_never_reserve_a_byte_twice():
    budget = Budget(16 << 20)
    free, taken = budget.free, []

    def take() -> None:
        with suppress(ValueError):
            while True:
                budget.reserve(1001, "rows")
                taken.append(1001)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) + budget.free == free
    assert 0 <= budget.free < 1001


def end_of_reads(budget: Budget) -> None:
    budget._read_at -= 2 * IDLE_SECONDS


def test_reads_ahead_go_before_growing_tables_and_other_leases():
    budget = Budget(1600)
    lease, share, told = budget.lease(), Share(1, 1500, 100), []
    share.notify = lambda: told.append("share")
    budget.reserve(1500, "cells")
    budget.join(share)
    assert lease.take(100)
    assert not lease.reads.take(40), "all of it is taken"
    assert (share.owed, told) == (187, ["share"]), "an eighth at least"
    budget.shrink(share, 30)
    assert not lease.take(1), "it is kept for reads"
    assert not budget.try_grow(1)
    assert not lease.reads.take(40)
    budget.shrink(share, 157)
    assert lease.reads.take(40)
    lease.reads.give_back(40)
    assert budget.unused == 0, "of 187 bytes 40 are kept for reads; the others are promised to tables"
    assert budget.try_grow(147)
    assert not budget.try_grow(1)
    assert lease.reads.take(40)
    assert not lease.reads.take(61), "they may have been read, but never more than a sixteenth goes first"
    assert budget.most_for_reads == 100
    end_of_reads(budget)
    lease.reads.give_back(40)
    assert lease.take(40)


def test_reads_ahead_may_have_more_than_a_sixteenth_of_what_nobody_uses():
    budget = Budget(1600)
    lease = budget.lease()
    assert lease.reads.take(900)
    assert lease.available == 700
    assert not lease.reads.take(701)
    lease.reads.give_back(900)
    assert lease.available == 1500, "a sixteenth is kept as long as reads begin"
    end_of_reads(budget)
    assert lease.available == 1600


def test_a_reservation_takes_what_reads_ahead_have_and_what_is_kept_for_them():
    budget = Budget(1600)
    lease, asked = budget.lease(), []

    def give_back() -> None:
        asked.append(lease.reads.owed)
        lease.reads.give_back(lease.reads.held)

    lease.reads.notify = give_back
    assert lease.reads.take(100)
    budget.reserve(1600, "rows")
    assert asked == [100]
    assert (lease.reads.owed, budget.free) == (0, 0)
    assert not lease.reads.take(1)


def test_a_lease_for_reads_ends_with_the_other():
    budget = Budget(1600)
    lease = budget.lease()
    assert lease.reads.take(100)
    assert lease.take(100)
    lease.end()
    assert budget.free == 1600
    assert budget._leases == []


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
    total, failures = 10_000, []
    budget = Budget(total)
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

    def run(work, seed: int) -> None:
        try:
            work(seed)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(work, seed)) for seed in range(3) for work in (lessee, owner)][:5]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert min(seen_low) >= 0
    assert budget.free == total
    assert budget.unused >= total - budget.most_for_reads
    end_of_reads(budget)
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
