"""Leases: memory that is lent, first to reads ahead."""

from __future__ import annotations

from kvemb.memory.budget import IDLE_SECONDS, Budget
from kvemb.memory.rebalancer import Share


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
