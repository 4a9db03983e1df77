"""Modules over a cluster's variables give and train what they do over one store's, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from exported import exported

import kvemb
import kvemb.cluster
import kvemb.torch as kt
from kvemb.handle import inside
from kvemb.optimizers import Adagrad, Adam


class Model(torch.nn.Module):
    """An Embedding, bags with weights, a collection over two tables, and a dense layer."""

    def __init__(self, store) -> None:
        super().__init__()
        how = {
            "store": store,
            "hot_rows": 32,
            "initializer": kvemb.RandomNormal(0.0, 1.0, seed=7),
            "restrict_policy": kvemb.FrequencyRestrictPolicy(half_life=50.0),
        }
        adam = Adam(0.1, bias_correction="global")
        self.users = kt.Embedding("users", 4, optimizer=adam, padding_idx=0, **how)
        self.words = kt.EmbeddingBag("words", 4, mode="sum", optimizer=Adagrad(0.2), **how)
        tables = {
            name: store.get_variable(name, dim=dim, optimizer=adam, hot_rows=32) for name, dim in (("a", 4), ("b", 2))
        }
        self.many = kt.EmbeddingBagCollection(tables, {"x": "a", "y": "b", "z": "a"})
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(4 + 4 + 4 + 2 + 4, 1)

    def forward(self, batch):
        many = self.many({name: (batch[name], batch["begins"]) for name in "xyz"})
        words = self.words(batch["words"], batch["begins"], per_sample_weights=batch["weights"])
        return self.dense(torch.cat([self.users(batch["users"]), words, *(many[name] for name in "xyz")], 1))


def batches(count, seed=0):
    made = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = {name: torch.randint(0, 60, (24,), generator=made) for name in ("words", "x", "y", "z")}
        users = torch.randint(0, 60, (8,), generator=made)
        yield {**ids, "users": users, "begins": torch.arange(0, 24, 3), "weights": torch.rand(24, generator=made)}


def trained(store, count=8):
    """Train with a schedule and prefetching; returns the losses and the model."""
    model = Model(store)
    optimizers = [torch.optim.SGD(model.dense.parameters(), 0.1), kt.Optimizer(model)]
    schedule = torch.optim.lr_scheduler.StepLR(optimizers[1], 3, 0.5)
    losses = []
    for batch in kt.prefetching(batches(count), {model.users: "users", model.words: "words"}, 2):
        loss = model(batch).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*model.parameters(), *optimizers[1].leaves], 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return losses, model


def test_training_is_that_of_one_store(store, cluster):
    losses = [trained(place)[0] for place in (store, cluster)]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    mine, theirs = (exported(place.variables.values()) for place in (store, cluster))
    assert mine.keys() == theirs.keys()
    for name, rows in mine.items():
        np.testing.assert_array_equal(rows, theirs[name], err_msg=name)


def test_fused_modules_step_in_the_backward_and_evaluation_uses_nothing(store, cluster):
    rows = []
    for place in (store, cluster):
        bag = kt.EmbeddingBag("bag", 3, store=place, optimizer=Adagrad(0.5), fused=True, initializer=1.0)
        for batch in batches(4):
            bag(batch["words"], batch["begins"]).square().sum().backward()
        bag.eval()
        rows.append(bag(torch.arange(60)[None, :]).detach().numpy())
    np.testing.assert_array_equal(*rows)


def test_two_clients_that_train_in_turns_are_one(store, cluster, tmp_path):
    other = kvemb.cluster.connect(tmp_path / "series", transport="local")
    made = []
    for places in ((store, store), (cluster, other)):
        modules = [kt.Embedding("users", 4, store=place, optimizer=Adagrad(0.5), initializer=1.0) for place in places]
        optimizers = [kt.Optimizer(module) for module in modules]
        for at, batch in enumerate(batches(6)):
            modules[at % 2](batch["users"]).square().sum().backward()
            optimizers[at % 2].step()
        made.append(places[0].variables["users"].export()[1])
    np.testing.assert_array_equal(*made)
    other.close()


def test_a_state_dict_says_which_checkpoint_the_rows_belong_to(cluster):
    module = kt.Embedding("users", 4, store=cluster, optimizer=Adagrad(0.5))
    before = module.state_dict()
    cluster.checkpoint()
    after = module.state_dict()
    assert json.loads(bytes(after["_extra_state"].tolist())) == {"users": {"store": cluster.id, "point": 1}}
    module.load_state_dict(before)
    after["_extra_state"] = {"users": {"store": cluster.id, "point": 2}}
    with pytest.raises(ValueError, match="durable point 2 of its store, but the store is at the earlier point 1"):
        module.load_state_dict(after)


def test_several_processes_train_a_cluster_that_they_share(cluster, store, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    mine, theirs = (kt.Embedding("users", 4, store=place, optimizer=Adagrad(0.5)) for place in (store, cluster))
    for module in (mine, theirs):
        with pytest.raises(RuntimeError, match=r"train in one process, or over a cluster: rank 0 calls"):
            module(torch.tensor([1]))
        with torch.no_grad():
            assert module(torch.tensor([1])).shape == (1, 4)
    monkeypatch.setattr(inside(cluster), "shared", True)
    assert theirs(torch.tensor([1])).shape == (1, 4)
    with pytest.raises(RuntimeError, match=r"cannot be trained by 2 processes"):
        mine(torch.tensor([1]))
