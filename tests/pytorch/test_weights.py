"""Weights of torch.nn's modules become rows, so a model trained with them goes on with modules over variables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvemb
import kvemb.torch as kt

DIM = 4


@pytest.fixture
def named(store):
    """A function that makes a module over a new variable."""
    return lambda kind, name, **arguments: kind(
        name, DIM, store=store, **{"optimizer": kvemb.optimizers.SGD(0.5), **arguments}
    )


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_a_plain_model_is_loaded_as_it_is(named, kind):
    plain = torch.nn.Sequential(getattr(torch.nn, kind)(20, DIM, padding_idx=3), torch.nn.Linear(DIM, 1))
    model = torch.nn.Sequential(named(getattr(kt, kind), "words", padding_idx=3), torch.nn.Linear(DIM, 1))
    state = plain.state_dict()
    before = dict(state)
    model.load_state_dict(state)
    assert state.keys() == before.keys()
    ids = torch.arange(20)[:, None]
    torch.testing.assert_close(model(ids), plain(ids))
    variable = model[0].variable
    assert variable.size() == 19, "the padding has no row"
    variable.resource_handle[0].flush()
    model.load_state_dict(model.state_dict())  # and its own, as ever


def test_a_weight_of_many_rows_is_taken_whole(named):
    weight = torch.randn(70_000, DIM)
    module = named(kt.Embedding, "words", padding_idx=69_999)
    module.load_state_dict({"weight": weight})
    keys, rows = module.variable.export()
    np.testing.assert_array_equal(keys, np.arange(69_999))
    np.testing.assert_array_equal(rows, weight[:-1].numpy())


def test_losses_go_on_as_with_plain_modules(named):
    torch.manual_seed(1)
    plain = torch.nn.EmbeddingBag(50, DIM, mode="sum", sparse=True)
    module = named(kt.EmbeddingBag, "words", mode="sum")
    module.load_state_dict(plain.state_dict())
    steps = [kt.Optimizer(module), torch.optim.SGD(plain.parameters(), 0.5)]
    for _ in range(5):
        ids = torch.randint(0, 50, (8, 3))
        losses = [(each(ids) - 1).square().mean() for each in (module, plain)]
        for loss, optimizer in zip(losses, steps, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*losses)


@pytest.mark.parametrize("prefix", ["", "embedding_bags."])
def test_a_collection_takes_the_weights_of_each_table(store, prefix):
    made = {"dim": DIM, "optimizer": kvemb.optimizers.SGD(0.5)}
    tables = kt.EmbeddingBagCollection({"a": made, "b": made}, store=store)
    wanted = {name: torch.randn(5, DIM) for name in "ab"}
    tables.load_state_dict({f"{prefix}{name}.weight": weight for name, weight in wanted.items()})
    found = tables({name: torch.arange(5)[:, None] for name in "ab"})
    assert all(torch.equal(found[name], wanted[name]) for name in "ab")
    with pytest.raises(RuntimeError, match=r"Missing key.*b\.weight"):
        tables.load_state_dict({f"{prefix}a.weight": wanted["a"]})
    tables.load_state_dict({f"{prefix}a.weight": wanted["a"]}, strict=False)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*c\.weight"):
        tables.load_state_dict({f"{prefix}{name}.weight": wanted["a"] for name in "abc"})


@pytest.mark.parametrize("value_dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_are_rounded_to_those_of_the_variable(named, value_dtype, dtype):
    module = named(kt.Embedding, "words", value_dtype=value_dtype)
    weight = torch.randn(5, DIM, dtype=torch.float64).to(dtype)
    module.load_state_dict({"weight": weight})
    wanted = weight.double().numpy().astype(value_dtype)
    np.testing.assert_array_equal(module.variable.lookup(np.arange(5)), wanted)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(5, DIM + 1), r"weight must be of shape \(n, 4\), as variable 'words' has it, got \(5, 5\)"),
        (torch.zeros(DIM), r"weight must be of shape \(n, 4\).*got \(4,\)"),
        (torch.zeros(5, DIM, dtype=torch.int64), "weight must be a dense tensor of floats"),
        (torch.zeros(5, DIM).to_sparse(), "weight must be a dense tensor of floats"),
        (None, "weight must be a dense tensor of floats, got None"),
    ],
    ids=["dim", "vector", "integers", "sparse", "none"],
)
def test_what_is_no_weight_of_the_variable_is_refused(named, weight, message):
    module = named(kt.Embedding, "words")
    with pytest.raises(RuntimeError, match=message):
        module.load_state_dict({"weight": weight})
    assert module.variable.size() == 0
