"""A table is kept within its bounds while others use it; alone, the result is that of restrict."""

from __future__ import annotations

import numpy as np
import pytest

import kvemb
from kvemb.handle import inside
from tests.histories import small_spill

pytestmark = pytest.mark.limits(**small_spill(48), call_rows=40)
POLICIES = {
    "no policy": None,
    "last use": kvemb.TimestampRestrictPolicy("steps"),
    "uses": kvemb.FrequencyRestrictPolicy(),
    "fading uses": kvemb.FrequencyRestrictPolicy(half_life=5.0),
    "norm": kvemb.NormRestrictPolicy(),
    "expiring": kvemb.TimeToLiveRestrictPolicy(20.0, clock="steps"),
}


def quiet(took):
    """Nobody does anything between two batches."""


def keep(variable, max_rows=None, expired=0, pause=quiet):
    return inside(variable).operations.keep_bounds(max_rows, expired, pause, inside(variable).storage.refreshes)


def change(variable, chance, keys=300):
    """Some calls on a variable, decided by a generator."""
    some = chance.integers(keys, size=30)
    match chance.integers(5):
        case 0:
            variable.lookup(some)
        case 1:
            variable.remove(some[:9])
        case 2 if variable.optimizer is not None:
            variable.apply_gradients(some, chance.normal(size=(30, 3)))
        case _:
            variable.upsert(some, chance.normal(size=(30, 3)))


def rows(variable):
    keys, values, scores = variable.export(with_scores=True)
    return keys.tolist(), values.tolist(), scores.tolist()


@pytest.mark.independent
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_if_nobody_uses_the_table_the_rows_of_a_restriction_stay(make, policy, seed):
    one, other = (
        make(restrict_policy=POLICIES[policy], optimizer=kvemb.optimizers.Adagrad(0.1), initializer=0.0) for _ in "ab"
    )
    for variable in (one, other):
        chance = np.random.default_rng(seed)
        for _ in range(60):
            change(variable, chance)
    if seed % 2:
        one.resource_handle[0].flush()
    before, most = one.size(), 50
    assert keep(one, most) == inside(other).operations.restrict(most, None) > 0
    assert one.size() == min(most, other.size()) < before
    assert rows(one) == rows(other)


def test_a_table_within_its_bound_keeps_all_rows(make):
    table = make()
    table.upsert(np.arange(100), np.ones((100, 3)))
    assert keep(table, 100) == keep(table, 101) == keep(table) == 0
    assert table.size() == 100


def test_rows_whose_last_change_is_older_than_a_step_go_whatever_their_rank(make):
    table = make(restrict_policy=kvemb.FrequencyRestrictPolicy, optimizer=kvemb.optimizers.SGD(1.0))
    for first in range(0, 300, 100):
        table.upsert(np.arange(first, first + 100), np.ones((100, 3)))
        for _ in range(9):
            table.lookup(np.arange(100))  # the oldest rows have most uses; a use is no change
    table.apply_gradients(np.arange(50), np.ones((50, 3)))
    assert keep(table, expired=9) == 50
    assert table.export()[0].tolist() == [*range(50), *range(100, 300)]
    assert keep(table, 60, expired=18) == 190
    assert table.export()[0].tolist() == [*range(50), *range(290, 300)]


@pytest.mark.independent
@pytest.mark.parametrize("seed", range(6))
def test_rows_that_others_change_meanwhile_stay_as_they_left_them(make, seed):
    """Between two batches others insert, remove, use, train and save. No row differs from what they left."""
    table = make(restrict_policy=kvemb.TimestampRestrictPolicy("steps"), optimizer=kvemb.optimizers.SGD(1.0))
    store, chance, model = table.resource_handle[0], np.random.default_rng(seed), {}

    def upsert(keys):
        values = chance.normal(size=(len(keys), 3)).astype(np.float32)
        table.upsert(keys, values)
        model.update(zip(keys.tolist(), values.tolist(), strict=True))

    fresh, pending = [], []

    def others(took):
        kind = chance.integers(6)
        some = chance.choice(2000, 20, replace=False)
        if kind == 0:
            fresh.extend(key for key in some.tolist() if key not in model)  # for a row that exists it is no use
            upsert(some)
        elif kind == 1:
            table.remove(some)
            for key in some.tolist():
                model.pop(key, None)
        elif kind == 2:
            there = table.lookup(some, return_exists=True)[1]
            fresh.extend(some[there].tolist())
        elif kind == 3 and len(pending) < 3:
            pending.append(store.checkpoint(store.path.parent / f"saved{len(pending)}", block=False))

    upsert(chance.permutation(2000)[:1000])
    table.lookup(np.arange(0, 2000, 7))
    before = table.size()
    removed = keep(table, 300, pause=others)
    for each in pending:
        each.result()
    keys, values = table.export()
    assert {key: model[key] for key in keys.tolist()} == dict(zip(keys.tolist(), values.tolist(), strict=True))
    assert 0 < removed <= before
    assert table.size() >= 300 or set(model) == set(keys.tolist())
    last = [key for key in fresh[-20:] if key in model]
    assert set(last) <= set(keys.tolist()), "a row that was used just now was removed"
    assert keep(table, 300) == max(0, len(keys) - 300)
    assert table.size() == min(300, len(keys))
    assert inside(table).storage.check() == []


def test_it_never_removes_more_than_what_exceeds_the_bound(make):
    """Others remove rows after the ranks were taken, so fewer must go."""
    table = make(restrict_policy=kvemb.FrequencyRestrictPolicy)
    table.upsert(np.arange(200), np.ones((200, 3)))
    table.lookup(np.arange(100, 200))
    removed = []

    def others(took):
        if took == 0 and not removed:  # before the first part of the spool is read
            removed.append(table.remove(np.arange(150, 200)))

    assert keep(table, 120, pause=others) == 30
    assert table.size() == 120


def test_if_more_rows_came_meanwhile_than_may_stay_all_that_were_ranked_go(make):
    table, come = make(hot_rows=1024), []  # none leaves memory meanwhile: such rows are ranked by the next pass
    table.upsert(np.arange(200), np.ones((200, 3)))

    def others(took):
        if not come:
            come.append(table.upsert(np.arange(1000, 1100), np.ones((100, 3))))

    assert keep(table, 50, pause=others) == 200
    assert table.export()[0].tolist() == [*range(1000, 1100)]


@pytest.mark.independent
@pytest.mark.parametrize("pauses", [0, 1, 5, 15, 20])
def test_what_the_pause_raises_ends_it_and_leaves_whole_rows(make, pauses):
    table, left = make(), [None] * pauses
    table.upsert(np.arange(500), np.ones((500, 3)))
    with pytest.raises(IndexError, match="pop from empty list"):
        keep(table, 10, pause=lambda took: left.pop())
    assert (table.size() < 500) == (pauses == 20)
    assert inside(table).storage.check() == []
    assert keep(table, 10) > 0
    assert table.size() == 10


def test_while_the_ranks_of_a_cluster_are_open_no_row_is_removed(make):
    table = make(restrict_policy=kvemb.FrequencyRestrictPolicy)
    table.upsert(np.arange(100), np.ones((100, 3)))
    ranked = inside(table).operations.ranked()
    assert keep(table, 10) == 0
    ranked.close()
    assert keep(table, 10) == 90


def test_ranks_that_are_opened_while_its_rows_are_read_keep_it_from_removing_any(make, monkeypatch):
    """Their owner removes the same rows, which must not be counted twice."""
    table = make(restrict_policy=kvemb.FrequencyRestrictPolicy)
    table.upsert(np.arange(100), np.ones((100, 3)))
    inner = inside(table)
    locate, ranked = inner.storage.locate, []

    def locating(keys):
        with inner.storage.access.released():
            ranked.append(inner.operations.ranked())
        return locate(keys)

    with monkeypatch.context() as patched:
        patched.setattr(inner.storage, "locate", locating)
        assert keep(table, 10) == 0
    for each in ranked:
        each.close()
    assert table.size() == 100
