"""Who gives memory and who gets it: a table gives where its cells are worth less than half as much."""

from __future__ import annotations

import random

import pytest

from kvemb.memory.budget import Budget
from kvemb.memory.rebalancer import (
    GIVEN_PART,
    GOTTEN_OF_ALL,
    GOTTEN_PART,
    MAX_GIVEN_PARTS,
    MIN_TURN_ROWS,
    TURN_CALLS,
    Rebalancer,
    Share,
)

MIB = 1 << 20


def share_of(benefit: float | None, held: int = MIB, min_bytes: int = 0, *, refused: bool = False) -> Share:
    share = Share(1024, held, min_bytes)
    share.benefit, share.refused = benefit, refused
    return share


def after_a_turn(*shares: Share) -> list[Share]:
    sharing = Rebalancer()
    sharing.shares = list(shares)
    called: list[Share] = []
    while not called:
        called = sharing.offered(shares[0], MIN_TURN_ROWS // 4)
    return called


@pytest.mark.parametrize(("poor", "rich", "parts"), [(0.0, 1.0, 4), (1.0, 1.9, 0), (1.0, 2.5, 1), (1.0, 5.0, 2)])
def test_the_more_a_cell_is_worth_elsewhere_the_more_is_given(poor, rich, parts):
    giver, taker = share_of(poor, 64 * MIB), share_of(rich, 64 * MIB, refused=True)
    assert len(after_a_turn(taker, giver)) == 2
    assert giver.owed == 64 * MIB // GIVEN_PART * parts
    assert (giver.donor, taker.donor, taker.owed) == (parts > 0, False, 0)
    assert MAX_GIVEN_PARTS == 4


def test_nobody_gives_while_nobody_was_refused_anything():
    giver, other = share_of(0.0), share_of(1.0)
    after_a_turn(giver, other)
    assert (giver.owed, giver.donor) == (0, False)


def test_a_table_that_was_refused_gives_to_one_that_needs_it_more_and_gets_it_once_that_has_enough():
    giver, taker = share_of(1.0, refused=True), share_of(9.0, refused=True)
    after_a_turn(giver, taker)
    assert giver.donor
    giver.refused = True
    after_a_turn(giver, taker)
    assert not giver.donor, "nobody better wants memory now"


def test_no_more_is_asked_for_than_the_others_may_take():
    giver, taker, other = share_of(0.0, 64 * MIB), share_of(1.0, 4 * MIB, refused=True), share_of(0.9, 60 * MIB)
    after_a_turn(taker, giver, other)
    assert giver.owed == 128 * MIB // GOTTEN_OF_ALL
    other.refused, giver.owed = True, 0
    after_a_turn(other, giver, taker)
    assert giver.owed == min(60 * MIB // GOTTEN_PART, 64 * MIB // GIVEN_PART * MAX_GIVEN_PARTS)


def test_a_table_keeps_its_min_bytes():
    giver, taker = share_of(0.0, MIB, MIB - 100), share_of(1.0, 64 * MIB, refused=True)
    for _ in range(3):
        taker.refused = True
        after_a_turn(taker, giver)
    assert giver.owed == 100
    assert giver.spare() == 0


def test_a_new_table_is_worth_as_much_as_the_best():
    best, poor, new = share_of(8.0), share_of(1.0), share_of(None, refused=True)
    after_a_turn(new, best, poor)
    assert (best.owed, poor.owed > 0, new.donor) == (0, True, False)


def test_what_cannot_be_given_is_owed_no_longer():
    share = share_of(1.0)
    assert share.ask(2 * MIB) == MIB
    share.shrunk(1000)
    assert (share.held, share.owed) == (MIB - 1000, MIB - 1000)
    share.shrunk(0)
    assert share.owed == 0


@pytest.mark.parametrize(("tables", "calls"), [(1, 1), (2, TURN_CALLS), (26, 25 * TURN_CALLS)])
def test_in_a_turn_every_table_in_use_is_called(tables, calls):
    sharing = Rebalancer()
    sharing.shares = [share_of(1.0, held=1 << 14) for _ in range(30)]
    ended = [at for at in range(250 * TURN_CALLS) if sharing.offered(sharing.shares[at % tables], 10 * MIN_TURN_ROWS)]
    assert {later - earlier for earlier, later in zip(ended[-5:], ended[-4:], strict=False)} == {calls}


def test_random_turns_owe_within_bounds():
    chance = random.Random(1)
    shares = [share_of(None, chance.randrange(1, 8 * MIB), 512) for _ in range(12)]
    sharing = Rebalancer()
    sharing.shares = shares
    for _ in range(2000):
        share = chance.choice(shares)
        share.refused = True
        sharing.offered(share, chance.randrange(1, 2000))
        for other in shares:
            other.benefit = chance.choice([None, 0.0, chance.random()])
            assert 0 <= other.owed <= max(0, other.held - 512)
            if other.owed and chance.random() < 0.3:
                other.shrunk(min(other.owed, chance.randrange(4096)))
    assert sharing.available() == sum(max(0, share.held - 512) for share in shares)


def test_a_reservation_is_paid_for_by_tables_that_give_and_refused_beyond_what_they_can():
    budget = Budget(10 * MIB)
    budget.reserve(8 * MIB, "tables")
    shares = [share_of(benefit, 4 * MIB, MIB) for benefit in (1.0, 2.0)]
    for share in shares:
        budget.join(share)
        share.wake = lambda share=share: budget.shrink(share, min(share.owed, 300_000)) if share.owed else None
    assert budget.free == 2 * MIB
    budget.reserve(4 * MIB, "more")
    assert budget.free >= 0
    assert shares[0].held < shares[1].held == 4 * MIB, "what is worth least goes first"
    with pytest.raises(ValueError, match=r"too much needs 5\.0 MiB"):
        budget.reserve(5 * MIB, "too much")
    for share in shares:
        budget.leave(share)
    budget.give_back(4 * MIB)
    assert budget.free == 10 * MIB


def test_tables_keep_less_than_their_least_where_a_variable_could_not_be_opened_otherwise():
    budget = Budget(10 * MIB)
    budget.reserve(9 * MIB, "tables")
    shares = [Share(1024, 3 * MIB, 2 * MIB, floor) for floor in (1 << 14, None, 1 << 14)]
    for share in shares:
        budget.join(share)
        share.wake = lambda share=share: budget.shrink(share, share.owed) if share.owed else None
    with pytest.raises(ValueError, match=r"too much needs 4\.5 MiB"):
        budget.reserve(9 * MIB // 2, "too much")
    budget.reserve(9 * MIB // 2, "a variable", below_min=True)
    assert shares[1].held == shares[1].min_bytes == 2 * MIB, "one without a floor keeps it"
    budget.reserve(3 * MIB // 2, "another", below_min=True)
    assert [share.min_bytes % (1 << 14) for share in shares] == [0, 0, 0]
    with pytest.raises(ValueError, match=r"too much needs 2\.0 MiB"):
        budget.reserve(2 * MIB, "too much", below_min=True)
    last = budget.free + sum(shares[at].held - (1 << 14) for at in (0, 2))
    budget.reserve(last, "the last", below_min=True)
    assert [share.held for share in shares] == [1 << 14, 2 * MIB, 1 << 14]


def test_a_table_that_owes_or_is_a_donor_does_not_grow():
    budget = Budget(10 * MIB)
    budget.reserve(MIB, "table")
    share = share_of(1.0)
    budget.join(share)
    share.ask(10)
    assert not budget.grow(share, 1)
    assert share.refused
    share.shrunk(10)
    assert budget.grow(share, 100)
    assert share.held == MIB - 10 + 100
    share.donor = True
    assert not budget.grow(share, 1)
    assert not Budget(64).grow(share_of(1.0), 65)
