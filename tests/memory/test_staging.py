"""Staging: pools of a fixed size, in which nobody locks the others out."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from kvemb.memory.budget import GrowingPart
from kvemb.memory.staging import Holding, Staging


def test_a_holder_gets_no_more_than_it_leaves_free():
    pool = GrowingPart(1000)
    first, second, third = Holding(pool), Holding(pool), Holding(pool)
    assert not first.take(501)
    assert first.take(500)
    assert (first.available, second.available) == (0, 250)
    assert second.take(250)
    assert third.take(125)
    assert pool.free == 125
    second.give_back(250)
    assert (first.available, third.available) == (0, 125)


def test_a_pool_that_is_too_small_grows_once_there_is_memory_for_it():
    asked, there = [], []

    def more(nbytes: int) -> bool:
        asked.append(nbytes)
        return bool(there)

    pool = GrowingPart(1000, 1800, more)
    holding = Holding(pool)
    assert not holding.take(501)
    assert (asked, pool.total) == ([100], 1000)
    there.append(True)
    assert not holding.take(501), "for those that come later"
    assert holding.take(501)
    assert (pool.total, pool.free) == (1100, 599)
    for _ in range(20):
        assert not holding.take(1000)
    assert (pool.total, sum(asked)) == (1800, 900)


def test_staging_has_a_share_of_the_budget_up_to_a_limit():
    for total, read, memtables in (
        (4 << 20, 1 << 18, 1 << 19), (1 << 30, 64 << 20, 64 << 20), (1 << 36, 256 << 20, 64 << 20)
    ):  # fmt: skip
        staging = Staging(total)
        assert (staging.read.total, staging.memtables.total) == (read, memtables)
        assert staging.total == read + memtables


def test_threads_never_have_more_than_there_is():
    pool = GrowingPart(10_000)

    def hold(seed: int) -> None:
        chance, holding = random.Random(seed), Holding(pool)
        for _ in range(2000):
            if not holding.take(chance.randrange(3000)):
                holding.give_back(chance.randrange(holding.held + 1))
            assert pool.free >= 0
        holding.give_back(holding.held)

    with ThreadPoolExecutor(4) as threads:
        for end in [threads.submit(hold, seed) for seed in range(4)]:
            end.result()
    assert pool.free == pool.total
