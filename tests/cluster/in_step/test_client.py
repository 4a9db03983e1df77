"""A step of several clients: bit for bit that of one store with the joined gradients, and whole in checkpoints."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from faulty import FaultyCluster

import kvemb
import kvemb.cluster
from kvemb.cluster.cluster import StepPart
from kvemb.cluster.in_step.client import RankClient, RankPart
from kvemb.handle import inside
from kvemb.optimizers import SGD, Adagrad, Adam

RANKS, NAMES = 3, ("rows", "counted", "admitted")


def tables(store):
    """Variables of three kinds: plain, with counted steps, with an admission."""
    how = {"dim": 2, "initializer": kvemb.RandomNormal(0.0, 1.0, seed=3), "hot_rows": 16}
    policy = kvemb.TimestampRestrictPolicy("steps")
    return [
        store.get_variable("rows", optimizer=Adagrad(0.3), restrict_policy=policy, **how),
        store.get_variable("counted", optimizer=Adam(0.1, bias_correction="global"), restrict_policy=policy, **how),
        store.get_variable("admitted", optimizer=SGD(0.5), admission=kvemb.Admission(4), **how),
    ]


def rank_clients(stores):
    return [
        RankClient(inside(store), [inside(table) for table in tables(store)], "group", rank)
        for rank, store in enumerate(stores)
    ]


def put(client, rank, gradients, factors=(1.0, 1.0, 1.0)):
    """Put gradients, by the position of the table, as rank does; returns its part."""
    steps = [StepPart(client._tables[at], keys, grads) for at, (keys, grads) in gradients.items()]
    return RankPart(rank, *client.put(steps), list(factors))


def drawn(chance):
    """Each rank's gradients of a step; some have none of a table, or none at all, and some keys are there twice."""
    made = []
    for _ in range(RANKS):
        sizes = chance.choice([0, 0, 3, 40], len(NAMES))
        made.append(
            {
                at: (chance.integers(0, 60, size), chance.standard_normal((size, 2)).astype(np.float32))
                for at, size in enumerate(sizes)
                if size
            }
        )
    return made


def in_order(keys, grads):
    """The distinct keys in the order of first occurrence, with the sums of their gradients."""
    distinct = list(dict.fromkeys(keys.tolist()))
    sums = np.zeros((len(distinct), 2), np.float32)
    np.add.at(sums, [distinct.index(key) for key in keys.tolist()], grads)
    return np.array(distinct), sums


@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_steps_are_those_of_one_store_whatever_the_transport_loses(store, tmp_path, share):
    faulty, chance = FaultyCluster(tmp_path, 3, share), np.random.default_rng(1)
    stores = [faulty.first, *(faulty.client() for _ in range(1, RANKS))]
    ranks, model, uses = rank_clients(stores), tables(store), 0
    for client in ranks[1:]:
        client.follow(ranks[0].steps())
    for _ in range(12):
        keys = chance.integers(0, 60, (RANKS, 20))
        for each, of_rank in zip(stores, keys, strict=True):
            each.lookup(dict.fromkeys(NAMES[:2], of_rank))
        store.lookup(dict.fromkeys(NAMES[:2], keys.reshape(-1)))
        uses += 1
        gradients = drawn(chance)
        parts = [put(client, rank, gradients[rank]) for rank, client in enumerate(ranks)]
        assert ranks[0].since() == [1, 1, 0]
        ranks[0].agree([max(each) for each in zip(*(client.since() for client in ranks), strict=True)])
        trained = sorted({at for each in gradients for at in each})
        assert ranks[0].step(parts, trained) == [None] * len(NAMES)
        for client in ranks[1:]:
            client.follow(ranks[0].steps())
        given = {}
        for at in trained:
            # The sums of each rank's equal keys are joined, except where an admission counts them.
            of_ranks = [each[at] if at == 2 else in_order(*each[at]) for each in gradients if at in each]
            given[NAMES[at]] = tuple(np.concatenate(arrays) for arrays in zip(*of_ranks, strict=True))
        store.apply_gradients(given)
    for client in stores:
        for table in model:
            mine, theirs = table.export(with_slots=True, with_scores=True), client.variables[table.name]
            for one, other in zip(mine, theirs.export(with_slots=True, with_scores=True), strict=True):
                np.testing.assert_equal(other, one, err_msg=table.name)
            assert (
                inside(theirs).entry().step == inside(table).entry().step == (0 if table.name == "admitted" else uses)
            )
    norms = ranks[0].norms([put(ranks[0], 0, {0: (np.array([7, 7]), np.ones((2, 2), np.float32))}, (0.5, 1.0, 1.0))])
    assert [tuple(norm) for norm in norms] == [(2.0, 1.0, True), (0.0, 0.0, True), (0.0, 0.0, True)]
    for each in reversed(stores):
        each.close()


@pytest.mark.slow
def test_a_checkpoint_has_each_step_whole_or_not_at_all(tmp_path):
    """While ranks step, another client writes checkpoints, over a transport that loses calls."""
    faulty = FaultyCluster(tmp_path, 3, 0.1, tmp_path / "series")
    stores = [faulty.first, faulty.client()]
    ranks = rank_clients(stores)
    keys, stop, saved = np.arange(64), threading.Event(), []

    def save():
        client = faulty.client()
        while not stop.is_set():
            saved.append(client.checkpoint().number)
        client.close()

    saving = threading.Thread(target=save)
    saving.start()
    while len(saved) < 4:
        halves = (keys[::2], keys[1::2])
        parts = [
            put(client, rank, {0: (half, np.full((32, 2), -1, np.float32))})
            for rank, (client, half) in enumerate(zip(ranks, halves, strict=True))
        ]
        ranks[0].step(parts, [0])
    stop.set()
    saving.join()
    stores[1].close()
    stores[0].close(flush=False)
    for number in saved:
        with kvemb.restore(f"{tmp_path / 'series'}/{number:08d}", tmp_path / str(number)) as one:
            (accumulated,) = (
                one.variables["rows"].export(with_slots=True)[2].values() if "rows" in one.variables else ((),)
            )
            assert len(np.unique(accumulated)) <= 1, "half a step"
            assert len(accumulated) in (0, 64)
