"""Leases: memory that is lent, first to reads ahead."""

from __future__ import annotations

from kvemb.memory.budget import IDLE_SECONDS, Budget
from kvemb.memory.rebalancer import Share


class Clock:
    """A clock that shows what it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_reads_ahead_go_before_growing_tables_and_other_leases():
    budget = Budget(1600, clock=(clock := Clock()))
    lease, share, told = budget.lease(), Share(1, 1540, 100), []
    share.notify, share.wake = (lambda: told.append("share")), (lambda: told.append("woken"))
    budget.reserve(1540, "cells")
    budget.join(share)
    assert lease.take(60)
    assert not lease.reads.take(40), "all of it is taken"
    assert (share.owed, told) == (192, ["share", "woken"]), "an eighth at least, also if it is never called"
    budget.shrink(share, 30)
    assert not lease.take(1), "it is kept for reads"
    assert not budget.try_grow(1)
    assert not lease.reads.take(40)
    budget.shrink(share, 162)
    assert lease.reads.take(40)
    lease.reads.give_back(40)
    assert budget.unused == 0, "of 192 bytes 40 are kept for reads; the others are promised to tables"
    assert budget.try_grow(152)
    assert not budget.try_grow(1)
    assert lease.reads.take(40)
    assert not lease.reads.take(161), "they may have been read, but never more than an eighth goes first"
    assert budget.most_for_reads == 200
    clock.now += IDLE_SECONDS
    lease.reads.give_back(40)
    lease.give_back(lease.owed)
    assert lease.take(40)


def test_reads_ahead_may_have_more_than_an_eighth_of_what_nobody_uses():
    budget = Budget(1600, clock=(clock := Clock()))
    lease = budget.lease()
    assert lease.reads.take(900)
    assert lease.available == 700
    assert not lease.reads.take(701)
    lease.reads.give_back(900)
    assert lease.available == 1400, "an eighth is kept as long as reads begin"
    clock.now += IDLE_SECONDS
    assert lease.available == 1600


def test_what_reads_ahead_have_beside_their_eighth_is_given_back_to_tables_and_other_leases():
    """Nobody may ever use the rows: then no call of their variable gives the memory back."""
    budget = Budget(1600)
    reader, other = budget.lease(), budget.lease()
    reader.reads.notify = lambda: reader.reads.give_back(reader.reads.owed)
    assert reader.reads.take(1600)
    assert not budget.try_grow(1000)
    assert reader.reads.held == 600
    assert budget.try_grow(1000)
    assert not other.take(150)
    assert other.take(150)
    assert not budget.try_grow(401), "an eighth goes first"
    assert reader.reads.held == 450
    assert not budget.try_grow(250)
    assert reader.reads.held == 200
    assert budget.try_grow(250)


def test_all_that_reads_ahead_have_is_given_back_once_none_has_begun_for_a_minute():
    budget = Budget(1600, clock=(clock := Clock()))
    reader, other = budget.lease(), budget.lease()
    reader.reads.notify = lambda: reader.reads.give_back(reader.reads.owed)
    budget.reserve(1500, "cells")
    assert reader.reads.take(100)
    assert not other.take(40)
    assert not other.take(40)
    clock.now += IDLE_SECONDS
    assert not other.take(40)
    assert other.take(40)


def test_other_leases_give_back_what_reads_ahead_lack():
    """Tables may be of a fixed size, or have too little left to grow and to ask for it."""
    budget = Budget(1600)
    spill, reader = budget.lease(), budget.lease()
    assert spill.take(1600)
    spill.notify = lambda: spill.give_back(spill.owed)
    assert not reader.reads.take(40)
    assert spill.held == 1200, "a quarter at least"
    assert reader.reads.take(40)
    assert not reader.reads.take(400)
    assert spill.held == 1200, "it would be more than an eighth"


def test_what_is_left_for_variables_serves_reads_ahead_too():
    """Growing tables leave a sixteenth, or what reads need if that is more; never both."""
    for needed, left in ((40, 100), (160, 160)):
        budget = Budget(1600)
        reads = budget.lease().reads
        assert reads.take(needed)
        reads.give_back(needed)
        assert not budget.try_grow(1600 - left + 1)
        assert budget.try_grow(1600 - left)


def test_memory_is_not_kept_for_a_read_that_is_too_large_for_it():
    budget = Budget(1600)
    lease = budget.lease()
    assert lease.take(100)
    assert not lease.reads.take(1501)
    assert budget.unused == 1500


def test_what_is_kept_for_reads_is_what_they_needed_lately():
    budget = Budget(1600, clock=(clock := Clock()))
    lease = budget.lease()
    for nbytes, kept in ((90, 90), (10, 90), (10, 90), (10, 90), (10, 10), (20, 20)):
        assert lease.reads.take(nbytes)
        lease.reads.give_back(nbytes)
        assert budget.unused == 1600 - kept
        clock.now += 0.5 * IDLE_SECONDS
    clock.now += 0.5 * IDLE_SECONDS
    assert budget.unused == 1600


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
