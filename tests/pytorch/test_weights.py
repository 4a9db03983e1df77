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
    torch.nn.init.normal_(plain[0].weight)  # the padding's row, too
    model = torch.nn.Sequential(named(getattr(kt, kind), "words", padding_idx=3), torch.nn.Linear(DIM, 1))
    state = plain.state_dict()
    before = dict(state)
    ids = torch.arange(20)[:, None]
    assert not model[0](ids[3:4]).any()
    model.load_state_dict(state)
    assert state.keys() == before.keys()
    torch.testing.assert_close(model(ids), plain(ids))
    variable = model[0].variable
    np.testing.assert_array_equal(variable.lookup(np.arange(20)), plain[0].weight.detach().numpy())
    variable.resource_handle[0].flush()
    model.load_state_dict(model.state_dict())  # and its own, as ever


def test_a_weight_of_many_rows_is_taken_whole(named):
    weight = torch.randn(70_000, DIM)
    module = named(kt.Embedding, "words", padding_idx=69_999)
    module.load_state_dict({"weight": weight})
    keys, rows = module.variable.export()
    np.testing.assert_array_equal(keys, np.arange(70_000))
    np.testing.assert_array_equal(rows, weight.numpy())


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
        (torch.zeros(5, DIM + 1), r"weight must have the shape \(n, 4\), got \(5, 5\), for variable 'words'"),
        (torch.zeros(DIM), r"weight must have the shape \(n, 4\), got \(4,\)"),
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


# from_pretrained.

WEIGHT = torch.arange(20.0).reshape(5, DIM)
PADDED = {"padding_idx": 3}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *(("Embedding", arguments) for arguments in ({}, PADDED, {"max_norm": 2.0})),
        *(("EmbeddingBag", {"mode": mode, **PADDED}) for mode in ("sum", "mean", "max")),
    ],
)
def test_a_pretrained_module_gives_what_torch_gives(store, kind, arguments):
    ours = getattr(kt, kind).from_pretrained(WEIGHT, "words", store=store, **arguments)
    theirs = getattr(torch.nn, kind).from_pretrained(WEIGHT.clone(), **arguments)  # with max_norm it changes them
    ids = torch.tensor([[0, 1], [4, 3], [2, 0]])
    torch.testing.assert_close(ours(ids), theirs(ids))
    assert ours.variable.size() == 5
    assert ours.embedding_dim == DIM


def test_pretrained_rows_are_frozen_until_they_are_not(store):
    ids = torch.tensor([1, 2])
    module = kt.Embedding.from_pretrained(WEIGHT, "words", store=store, optimizer=kvemb.optimizers.SGD(0.5))
    assert not module(ids).requires_grad
    optimizer = kt.Optimizer(module.requires_grad_(True))
    module(ids).sum().backward()
    optimizer.step()
    torch.testing.assert_close(module(ids), WEIGHT[ids] - 0.5)
    trained = kt.Embedding.from_pretrained(
        WEIGHT, "others", freeze=False, store=store, optimizer=kvemb.optimizers.SGD(0.5), fused=True
    )
    trained(ids).sum().backward()
    torch.testing.assert_close(trained(torch.arange(5))[:3], WEIGHT[:3] - torch.tensor([[0.0], [0.5], [0.5]]))


def test_pretrained_rows_that_stay_frozen_need_no_optimizer(store):
    """A model with such a table could not be trained at all."""
    before = torch.ones(3, 2)
    frozen = kt.Embedding.from_pretrained(before, "pretrained", store=store)
    rows = kt.Embedding("rows", 2, store=store, optimizer=kvemb.optimizers.SGD(1.0), initializer=0)
    optimizer = kt.Optimizer(torch.nn.ModuleList([frozen, rows]))
    assert [group["variable"] for group in optimizer.param_groups] == ["rows"]
    ids = torch.tensor([1])
    (frozen(ids) * rows(ids)).sum().backward()
    optimizer.step()
    assert rows.variable.lookup([1]).tolist() == [[-1.0, -1.0]]
    frozen.requires_grad_(True)
    frozen(ids).sum().backward()
    assert optimizer.leaves == []
    with pytest.raises(RuntimeError, match="variable 'pretrained' has no optimizer, so its rows cannot be trained"):
        frozen(ids)
    for model in (torch.nn.ModuleList([frozen, rows]), kt.Embedding(frozen.variable)):
        with pytest.raises(ValueError, match="variable 'pretrained' has no optimizer"):
            kt.Optimizer(model)
    with pytest.raises(ValueError, match=r"no module of kvemb\.torch with a trainable variable"):
        kt.Optimizer(frozen.requires_grad_(False))
    assert frozen.variable.lookup([1]).tolist() == [[1.0, 1.0]]


def test_rows_that_exist_are_not_replaced_by_pretrained_ones(store):
    variable = store.get_variable("words", dim=DIM)
    made = kt.Embedding.from_pretrained(WEIGHT, variable)
    assert made.variable is variable
    variable.upsert([1], np.ones((1, DIM), np.float32))
    for given in (variable, "words"):
        with pytest.raises(
            ValueError, match=r"'words' has 5 rows, which .*; open it as it is with Embedding\('words'\)"
        ):
            kt.Embedding.from_pretrained(WEIGHT, given, **({} if given is variable else {"store": store}))
    assert variable.lookup([1]).tolist() == [[1.0] * DIM]


def test_the_second_of_several_processes_is_told_to_open_the_variable(store, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    kt.Embedding.from_pretrained(WEIGHT, "words", store=store)
    with pytest.raises(ValueError, match=r"rank 0 alone .* the others Embedding\('words'\)\.requires_grad_\(False\)$"):
        kt.Embedding.from_pretrained(WEIGHT, "words", store=store)
    with pytest.raises(ValueError, match=r"the others Embedding\('words'\)$"):
        kt.Embedding.from_pretrained(WEIGHT, "words", store=store, freeze=False)
    assert kt.Embedding("words", store=store).variable.size() == 5


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (np.zeros((5, DIM)), TypeError, "embeddings must be a dense tensor of floats"),
        (torch.zeros(DIM), ValueError, r"embeddings must have the shape \(n, dim\), got \(4,\)"),
        (torch.zeros(5, 0), ValueError, "dim"),
    ],
    ids=["array", "vector", "empty rows"],
)
def test_what_is_no_pretrained_weight_makes_no_variable(store, weight, error, message):
    with pytest.raises(error, match=message):
        kt.Embedding.from_pretrained(weight, "words", store=store)
    assert list(store.variables) == []
    with pytest.raises(ValueError, match=r"embeddings must have the shape \(n, 3\), got \(5, 4\)"):
        kt.Embedding.from_pretrained(WEIGHT, store.get_variable("other", dim=3))


def test_from_pretrained_writes_rows_under_the_given_keys(store):
    keys = kvemb.hash_strings(["Paris", "Rome", "Oslo"])
    cities = kt.Embedding.from_pretrained(torch.eye(3), "cities", keys=keys, store=store)
    assert cities(torch.from_numpy(keys[[2, 0]])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert cities.variable.size() == 3
    for wrong, kind, message in (
        (["a", "b", "c"], TypeError, "keys must be integers, got str"),
        ([1, 2], ValueError, r"keys must have one key for each row of embeddings, \(3,\), got \(2,\)"),
        (torch.tensor([1, 5, 5]), ValueError, "keys must be distinct, got 5 more than once"),
    ):
        with pytest.raises(kind, match=message):
            kt.Embedding.from_pretrained(torch.eye(3), "others", keys=wrong, store=store)
    assert list(store.variables) == ["cities"]
