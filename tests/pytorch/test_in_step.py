"""Ranks that take each step together give what one process with all of their batches gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exported import exported
from rank_threads import clients, run

import kvemb
import kvemb.torch as kt
from kvemb.errors import RankLost, ShardLost
from kvemb.handle import inside
from kvemb.optimizers import SGD, Adagrad, Adam

RANKS, STEPS, BATCH = 2, 60, 8


class Model(torch.nn.Module):
    """Two embeddings with repeated ids, one of them of Adam that counts steps, and a dense layer."""

    def __init__(self, store) -> None:
        super().__init__()
        start = kvemb.RandomNormal(0.0, 1.0, seed=7)
        self.users = kt.Embedding(
            "users", 4, store=store, optimizer=Adagrad(0.2), initializer=start,
            restrict_policy=kvemb.FrequencyRestrictPolicy(half_life=50.0),
        )  # fmt: skip
        self.words = kt.EmbeddingBag(
            "words", 4, mode="mean", store=store, optimizer=Adam(0.05, bias_correction="global"), initializer=start,
            restrict_policy=kvemb.TimestampRestrictPolicy("steps"),
        )  # fmt: skip
        self.dense = torch.nn.Linear(8, 1)
        chance = torch.Generator().manual_seed(1)  # ranks are threads, which share torch's own
        for parameter in self.dense.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.3, generator=chance)

    def forward(self, ids):
        users, words = ids
        return self.dense(torch.cat([self.users(users), self.words(words)], 1))


def batch(step):
    """The batch of all ranks; the second half of some steps has no word that is trained."""
    chance = torch.Generator().manual_seed(step)
    users = (torch.rand(RANKS * BATCH, generator=chance) ** 3 * 60).long()
    return users, torch.randint(0, 40, (RANKS * BATCH, 3), generator=chance)


def train(store, rank, group, clip=False, scaled=False):
    """Train on a rank's part of each batch, or if rank is None on all of it; returns the losses and the model."""
    model = Model(store)
    rows = kt.Optimizer(model, group=group) if group else kt.Optimizer(model)
    dense = torch.optim.SGD(model.dense.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(rows, 50, 0.5)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**10, growth_interval=5)
    where = slice(None) if rank is None else slice(rank * BATCH, (rank + 1) * BATCH)
    losses = []
    for step in range(STEPS):
        loss = model([ids[where] for ids in batch(step)]).square().mean()
        scaler.scale(loss).backward()
        if group:
            group.mean(list(model.dense.parameters()))
        if scaled:
            scaler.unscale_(rows)
            scaler.unscale_(dense)
        if clip:
            torch.nn.utils.clip_grad_norm_([*model.parameters(), *rows.leaves], 0.5)
        for optimizer in (rows, dense):
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    return losses, model


def trained(model):
    """The parameters, the rows, and how many steps the tables have counted."""
    tables = [model.users.variable, model.words.variable]
    found = {name: value.detach().numpy() for name, value in model.dense.named_parameters()} | exported(tables)
    return found | {f"{each.name}.steps": np.array(inside(each).entry().step) for each in tables}


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"clip": True}, {"clip": True, "scaled": True}])
def test_two_ranks_train_what_one_process_does(store, cluster, tmp_path, monkeypatch, how):
    alone, model = train(store, None, None, **how)
    expected = trained(model)
    with clients(cluster, tmp_path / "series", RANKS, monkeypatch) as (groups, stores):
        ranks = run(lambda *given: train(*given, **how), stores, list(range(RANKS)), groups)
        losses = np.mean([losses for losses, _ in ranks], axis=0)
        np.testing.assert_allclose(losses, alone, rtol=1e-5, atol=1e-6)
        assert alone[-1] < alone[0] / 2
        for _, model in ranks:
            for name, array in trained(model).items():
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def small(store, group, rule=SGD(1.0), **how):  # noqa: B008 -- a frozen value
    """One embedding of ones, and its optimizer."""
    module = kt.Embedding("users", 2, store=store, optimizer=rule, initializer=1.0, **how)
    return module, kt.Optimizer(module, group=group, timeout=how.pop("timeout", 60.0))


@pytest.fixture
def two(cluster, tmp_path, monkeypatch):
    """The groups and the stores of two ranks."""
    with clients(cluster, tmp_path / "series", 2, monkeypatch) as made:
        yield made


def test_an_overflow_on_one_rank_makes_all_skip_the_step(two):
    groups, stores = two

    def work(group, store):
        module, rows = small(store, group)
        scaler, scales = torch.amp.GradScaler("cpu", init_scale=4.0), []
        for step in range(3):
            factor = torch.inf if (step, group.ranks.rank) == (1, 1) else 1.0
            ids = torch.tensor([1 + group.ranks.rank]) if step < 2 else torch.empty(0, dtype=torch.long)
            scaler.scale((module(ids) * factor).sum()).backward()
            scaler.step(rows)
            scaler.update()
            rows.zero_grad()
            scales.append(scaler.get_scale())
        return scales, module(torch.tensor([1, 2])).detach().tolist()

    assert run(work, groups, stores) == [([4.0, 2.0, 2.0], [[0.5, 0.5], [0.5, 0.5]])] * 2


def test_gradients_that_one_rank_refuses_are_taken_by_none_and_all_go_on(two):
    groups, stores = two

    def work(group, store):
        module, rows = small(store, group, check_finite=True)
        factor = torch.nan if group.ranks.rank == 1 else 1.0
        (module(torch.tensor([1, 2])) * factor).sum().backward()
        with pytest.raises(ValueError, match="gradient of key 1 of variable 'users' is not finite") as raised:
            rows.step()
        rows.zero_grad()
        module(torch.tensor([1])).sum().backward()
        rows.step()
        return str(raised.value)[:6], module(torch.tensor([1, 2])).detach().tolist()

    names, rows = zip(*run(work, groups, stores), strict=True)
    assert names == ("rank 1", "the gr")
    assert rows == ([[0, 0], [1, 1]],) * 2


def test_gradients_add_up_over_backward_passes_also_after_their_norm_was_asked_for(two):
    groups, stores = two

    def work(group, store):
        module, rows = small(store, group)
        for _ in range(2):
            module(torch.tensor([1, 1])).sum().backward()
        norms = [torch.nn.utils.clip_grad_norm_(rows.leaves, 2**0.5).item()]
        if group.ranks.rank == 0:
            module(torch.tensor([2, 2])).sum().backward()
        norms += [rows.leaves[0].grad.norm().item(), rows.leaves[0].grad.norm(torch.inf).item()]
        rows.step()
        module(torch.tensor([1])).sum().backward()
        norms.append(rows.leaves[0].grad.norm().item())
        rows.zero_grad()
        rows.step()
        return norms, module(torch.tensor([1, 2])).detach().tolist()

    (norms, rows), other = run(work, groups, stores)
    assert other == (norms, rows)
    np.testing.assert_allclose(norms, [32**0.5, 2, 1, 2**0.5], rtol=1e-6)
    np.testing.assert_allclose(rows, [[0, 0], [0, 0]], atol=1e-6)


def test_ranks_that_differ_are_told_what_differs(two):
    groups, stores = two

    def work(group, store):
        with pytest.raises(ValueError, match=r"rank 1 has average False, but rank 0 has True"):
            kt.Optimizer(small(store, False)[0], group=group, average=not group.ranks.rank)
        module, rows = small(store, group)
        rows.param_groups[0]["lr"] = 0.25 * (1 + group.ranks.rank)
        module(torch.tensor([1])).sum().backward()
        with pytest.raises(
            ValueError,
            match=r"rank 1 has the optimizers .*rate=0.5.* rank 0 has .*rate=0.25",
        ):
            rows.step()
        rows.param_groups[0]["lr"] = 0.25
        with pytest.raises(ValueError, match="the call"):
            rows.leaves[0].grad.norm() if group.ranks.rank else rows.step()
        rows.step()
        assert module.variable.optimizer == SGD(0.25)
        return module(torch.tensor([1])).detach().tolist()

    assert run(work, groups, stores) == [[[0.75, 0.75]]] * 2


@pytest.mark.parametrize(
    ("dead", "hangs"), [(0, False), (1, False), (1, True), pytest.param(0, True, marks=pytest.mark.slow)]
)
def test_a_rank_that_ends_or_hangs_is_named_and_nothing_is_taken(two, dead, hangs):
    groups, stores = two

    def work(group, store):
        module = kt.Embedding("users", 2, store=store, optimizer=SGD(1.0), initializer=1.0)
        rows = kt.Optimizer(module, group=group, timeout=0.2)
        calls = inside(store).session.calls
        calls.timeouts = calls.timeouts._replace(most=0.2)
        module(torch.tensor([1])).sum().backward()
        if group.ranks.rank == dead:
            if not hangs:
                group.ranks.close()
            group.meeting.wait()
            return None
        for _ in range(2):
            with pytest.raises(RankLost, match=rf"^rank {dead} {'did not come' if hangs else 'has ended'}.* start all"):
                rows.step()
        group.meeting.wait()
        return module(torch.tensor([1])).detach().tolist()

    assert run(work, groups, stores)[1 - dead] == [[1, 1]]


def test_after_a_loss_all_ranks_go_back_and_on_in_step(two):
    groups, stores = two
    stores[0].checkpoint()

    def work(group, store):
        module, rows = small(store, group, restrict_policy=kvemb.TimestampRestrictPolicy("steps"))
        for step in range(4):
            module(torch.tensor([1])).sum().backward()
            if step == 2:
                group.meeting.wait()
                if group.ranks.rank == 1:
                    inside(store).session.calls.transport.close()
                with pytest.raises(ShardLost):
                    rows.step()
                store.recover()
                group.meeting.wait()
                module(torch.tensor([1])).sum().backward()
            rows.step()
        assert module.variable.restrict_policy.status([1]).tolist() == [2]
        group.meeting.wait()  # the lookups that follow are uses
        return module(torch.tensor([1])).detach().tolist()

    assert run(work, groups, stores) == [[[-1, -1]]] * 2, "the checkpoint has no rows"


def test_a_group_needs_a_cluster_and_its_ranks(store, cluster, two):
    groups, _ = two
    module = kt.Embedding("users", 2, store=store, optimizer=SGD(1.0))
    with pytest.raises(ValueError, match="need all tables in one cluster that they share"):
        kt.Optimizer(module, group=groups[0])
    with pytest.raises(ValueError, match=r"first call torch\.distributed\.init_process_group"):
        kt.Optimizer(module, group=None)
    with pytest.raises(ValueError, match="timeout must be"):
        kt.Optimizer(module, group=groups[0], timeout=0)
    fused = kt.Embedding("fused", 2, store=cluster, optimizer=SGD(1.0), fused=True)
    with pytest.raises(ValueError, match="fused=True takes this rank's step"):
        kt.Optimizer(fused, group=groups[0])


def test_a_group_of_one_rank_is_none(store, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 1)
    module, rows = small(store, object())
    module(torch.tensor([1])).sum().backward()
    assert rows.leaves[0].grad.tolist() == [[1, 1]]
    rows.step()
    assert module(torch.tensor([1])).tolist() == [[0, 0]]
