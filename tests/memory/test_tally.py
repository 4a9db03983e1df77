"""The sum of what several holders have."""

from __future__ import annotations

from kvemb.memory.budget import Budget
from kvemb.memory.tally import FORGOTTEN_AFTER, Tally


def test_each_holder_has_one_number():
    tally = Tally()
    for holder, number, total in (("a", 3, 3), ("b", 4, 7), ("a", 5, 9), ("b", 0, 5), ("c", 0, 5), ("a", 0, 0)):
        tally.note(holder, number)
        assert tally.total == total
    assert not tally._noted


def test_a_holder_that_notes_nothing_more_is_forgotten_while_the_others_go_on():
    tally = Tally()
    for holder in "abc":
        tally.note(holder, 1)
    totals = []
    for _ in range(FORGOTTEN_AFTER * 3):
        for holder in "ab":
            tally.note(holder, 1)
            totals.append(tally.total)
    assert totals[: FORGOTTEN_AFTER * 3] == [3] * FORGOTTEN_AFTER * 3
    assert set(totals[FORGOTTEN_AFTER * 3 :]) == {2}


def test_what_a_lessee_noted_ends_with_its_lease():
    budget = Budget(1 << 20)
    leases = [budget.lease() for _ in range(2)]
    for lease in leases:
        budget.pushed_out.note(lease.reads, 100)
    leases[0].end()
    assert budget.pushed_out.total == 100
