"""state_dict() and load_state_dict() of models with rows: the rows go where the dense part goes."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from collections import OrderedDict

import pytest
import torch

import kvemb
import kvemb.torch as kt
from kvemb.errors import MarkNotFound
from kvemb.optimizers import Adagrad

IDS = torch.arange(200).reshape(50, 4)


class Model(torch.nn.Module):
    def __init__(self, store):
        super().__init__()
        bags = {"dim": 4, "optimizer": Adagrad(0.5)}
        self.users = kt.EmbeddingBag("users", 4, store=store, optimizer=Adagrad(0.5), initializer=0.5)
        self.tower = torch.nn.Sequential(OrderedDict(items=kt.EmbeddingBagCollection({"items": bags}, store=store)))
        self.head = torch.nn.Linear(8, 1)

    def forward(self, ids):
        return self.head(torch.cat([self.users(ids), self.tower({"items": ids})["items"]], 1))


@pytest.fixture
def model(store):
    torch.manual_seed(0)
    return Model(store)


def train(model, steps, seed=0):
    rows, dense = kt.Optimizer(model), torch.optim.SGD(model.parameters(), 0.05)
    torch.manual_seed(seed)
    for _ in range(steps):
        loss = (model(IDS[torch.randint(0, 50, (20,))]) - 1).square().mean()
        for each in (rows, dense):
            each.zero_grad()
        loss.backward()
        for each in (rows, dense):
            each.step()


def loss_of(model):
    model.eval()
    with torch.no_grad():
        found = (model(IDS) - 1).square().mean()
    model.train()
    return float(found)


@pytest.mark.parametrize("copied", [copy.deepcopy, dict, lambda state: {k: v.clone() for k, v in state.items()}])
def test_an_early_stopping_loop_gets_its_best_model_back(model, store, copied):
    train(model, 3)
    best, loss = copied(model.state_dict()), loss_of(model)
    dense = model.head.weight.detach().clone()
    train(model, 5, 1)
    assert loss_of(model) != loss
    if copied is dict:  # torch's own are not copied either
        best = {**best, "head.weight": dense, "head.bias": best["head.bias"]}
        best["head.bias"] = best["head.bias"].clone()
    model.load_state_dict(best)
    assert copied is dict or loss_of(model) == loss
    assert len(store.marks) == 1
    train(model, 5, 1)
    model.load_state_dict(best)
    assert copied is dict or loss_of(model) == loss


def test_a_state_dict_that_lives_can_be_loaded_however_many_are_saved_to_files(open_store, tmp_path):
    torch.manual_seed(0)
    store = open_store(tmp_path / "store", keep_marks=2)
    model = Model(store)
    train(model, 2)
    best, loss = copy.deepcopy(model.state_dict()), loss_of(model)
    for epoch in range(4):
        train(model, 1, epoch)
        torch.save(model.state_dict(), tmp_path / f"{epoch}.pt")
    assert len(store.marks) == 3
    model.load_state_dict(best)
    assert loss_of(model) == loss
    model.load_state_dict(torch.load(tmp_path / "3.pt", weights_only=True))
    with pytest.raises(MarkNotFound, match="Nothing was loaded"):
        model.load_state_dict(torch.load(tmp_path / "0.pt", weights_only=True))
    del best
    model.state_dict()
    assert len(store.marks) == 2


def test_all_modules_of_a_store_share_one_mark_of_a_call(model, store):
    state = model.state_dict()
    assert state.keys() >= {"users._extra_state", "tower.items._extra_state", "head.weight"}
    assert all(isinstance(each, torch.Tensor) for each in state.values())
    assert len(store.marks) == 1
    train(model, 1)
    again = model.state_dict()
    assert len(store.marks) == 2
    model.state_dict(destination=again)
    assert len(store.marks) == 3
    state["users._extra_state"] = again["users._extra_state"]
    with pytest.raises(ValueError, match="parts of different states"):
        model.load_state_dict(state)


@pytest.mark.slow
def test_it_comes_back_from_a_file_in_another_process(model, store, tmp_path):
    train(model, 3)
    torch.save(model.state_dict(), tmp_path / "best.pt")
    loss = loss_of(model)
    train(model, 3, 1)
    store.close(flush=False)
    program = f"""
        import sys; sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
        import kvemb, torch
        from test_states import Model, loss_of
        with kvemb.open({str(tmp_path / "store")!r}, memory_budget="8MiB") as store:
            model = Model(store)
            model.load_state_dict(torch.load({str(tmp_path / "best.pt")!r}, weights_only=True))
            print(repr(loss_of(model)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == loss


def test_what_cannot_be_loaded_changes_nothing(model, store, open_store, tmp_path):
    state = copy.deepcopy(model.state_dict())
    train(model, 2)
    loss = loss_of(model)
    (mark,) = store.marks
    broken = {name: value for name, value in state.items() if name != "head.bias"}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: .head\.bias"):
        model.load_state_dict(broken)
    train(model, 0)
    rows = model.users.variable.export()[1].copy()
    model.head.load_state_dict({"weight": torch.ones(1, 8), "bias": torch.ones(1)})
    loss = loss_of(model)
    with open_store(tmp_path / "other") as other, pytest.raises(ValueError, match="but this is the store"):
        Model(other).load_state_dict(state)
    store.drop_mark(mark)
    with pytest.raises(MarkNotFound, match="Nothing was loaded"):
        model.load_state_dict(state)
    assert loss_of(model) == loss
    assert (model.users.variable.export()[1] == rows).all()


def test_weights_are_not_written_if_the_rest_does_not_fit(store):
    model = torch.nn.Sequential(kt.Embedding("words", 4, store=store, optimizer=Adagrad()), torch.nn.Linear(4, 1))
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({"0.weight": torch.ones(3, 4), "1.weight": torch.ones(1, 4)})
    assert model[0].variable.size() == 0


def test_a_load_of_the_present_rows_goes_nowhere(model, store):
    train(model, 1)
    state = model.state_dict()
    point = store.point
    model.load_state_dict(state)
    assert store.point == point


def test_a_reader_loads_only_what_it_shows(model, store, open_store, tmp_path):
    train(model, 1)
    state = copy.deepcopy(model.state_dict())
    store.flush()
    loss = loss_of(model)
    with open_store(tmp_path / "store", read_only=True) as reader:
        shown = Model(reader)
        shown.load_state_dict(state)
        assert loss_of(shown) == loss
    train(model, 1, 1)
    store.flush()
    with open_store(tmp_path / "store", read_only=True) as reader, pytest.raises(ValueError, match="is read-only"):
        Model(reader).load_state_dict(state)
    with open_store(store.marks[0].path, read_only=True) as reader:
        shown = Model(reader)
        shown.load_state_dict(state)
        assert loss_of(shown) == loss


def test_rows_in_memory_alone_are_in_no_state_dict(store):
    module = kt.Embedding("words", 4, store=store, kv_creator=kvemb.MemoryCreator())
    with pytest.raises(ValueError, match="the rows of 'words' are in memory alone"):
        module.load_state_dict(module.state_dict())


def test_a_state_dict_in_a_checkpoint_is_of_that_checkpoint(model, store, tmp_path):
    train(model, 1)

    def save(file):
        torch.save(model.state_dict(), file)

    with kvemb.CheckpointManager(tmp_path / "series") as series:
        series.save(store, files={"model.pt": save})
        assert store.marks == []
        loss = loss_of(model)
        train(model, 1, 1)
        store.close(flush=False)
        resumed, last = series.resume(tmp_path / "store", memory_budget="8MiB")
    with resumed:
        again = Model(resumed)
        again.load_state_dict(torch.load(last.files["model.pt"], weights_only=True))
        assert loss_of(again) == loss


def test_other_modules_load_as_ever():
    assert torch.nn.Module.load_state_dict.__doc__.startswith("Copy parameters")
    linear = torch.nn.Linear(2, 1)
    assert str(linear.load_state_dict(linear.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(TypeError, match="dict-like"):
        linear.load_state_dict(3)
