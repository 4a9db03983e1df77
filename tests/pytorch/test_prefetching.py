"""Prefetching changes no result; loaders with workers, compiled models and threads train as without."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from spawned import Clicks

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import Adagrad


def trained(store, loader, depth: int | None):
    users, items = (
        kt.Embedding(
            name, 4, store=store, optimizer=Adagrad(0.1), initializer=kvemb.RandomNormal(0, 1, seed=1), hot_rows=16
        )
        for name in ("users", "items")
    )
    model = torch.nn.ModuleList([users, items])
    optimizer = kt.Optimizer(model)
    batches = loader
    if depth is not None:
        batches = kt.prefetching(loader, {users: "user", items.variable: lambda batch: batch["item"].numpy()}, depth)
    for batch in batches:
        (users(batch["user"]) * items(batch["item"])).sum(1).sigmoid().mean().backward()
        optimizer.step()
    return [module.variable.export()[1] for module in model]


def test_results_are_the_same_bit_for_bit(open_store, tmp_path):
    loader = torch.utils.data.DataLoader(Clicks(), batch_size=16)
    expected = trained(open_store(tmp_path / "0"), loader, None)
    for depth in (1, 3):
        found = trained(open_store(tmp_path / str(depth)), loader, depth)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader_make_keys(open_store, tmp_path, context):
    alone = torch.utils.data.DataLoader(Clicks(), batch_size=64)
    expected = trained(open_store(tmp_path / "alone"), alone, None)
    store = open_store(tmp_path / "store")
    store.get_variable("there", dim=1).upsert([1], [[1.0]])
    loader = torch.utils.data.DataLoader(Clicks(), batch_size=64, num_workers=1, multiprocessing_context=context)
    found = trained(store, loader, 1)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_next_batches_are_asked_for_and_read_ahead_and_no_more(store, monkeypatch):
    variable = store.get_variable("t", dim=1)
    asked: list[int] = []
    read: list[tuple[list[int], bool]] = []
    monkeypatch.setattr(
        kvemb.Variable, "prefetch", lambda _, keys, after_lookup: read.append((keys.tolist(), after_lookup))
    )

    def loader():
        for number in range(5):
            asked.append(number)
            yield {"ids": torch.tensor([number])}

    threads = threading.active_count()
    batches = kt.prefetching(loader(), {variable: "ids"}, depth=2)
    assert asked == []
    assert next(batches)["ids"].item() == 0
    assert asked == [0, 1, 2]
    assert read == [([1], True), ([2], True)]
    assert next(batches)["ids"].item() == 1
    assert asked == [0, 1, 2, 3]
    batches.close()
    with pytest.raises(StopIteration):
        next(batches)
    assert threading.active_count() <= threads + 2, "those of the store"
    assert [batch["ids"].item() for batch in kt.prefetching(loader(), {variable: "ids"})] == [0, 1, 2, 3, 4]
    assert list(kt.prefetching([], {variable: "ids"})) == []
    assert list(kt.prefetching([None, None], {})) == [None, None]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("ids", ["loader", "ids"])
def test_batches_before_a_failure_are_given_first(store, depth, ids):
    """Those that were being read ahead were lost."""

    def loader():
        yield from ({"loader": torch.tensor([number]), "ids": torch.tensor([number])} for number in range(3))
        if ids == "loader":
            raise ConnectionError("the loader failed")
        yield {}
        raise AssertionError("asked after a failure")

    batches = kt.prefetching(loader(), {store.get_variable("t", dim=1): ids}, depth)
    assert [next(batches)["ids"].item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ConnectionError if ids == "loader" else KeyError, match=r"the loader failed|ids"):
        next(batches)


@pytest.mark.parametrize(
    ("batch", "source", "error", "told"),
    [
        ({"user": torch.tensor([1]), "item": torch.tensor([1])}, "users", KeyError, "it has 'user', 'item'"),
        ((torch.tensor([1]),), 1, IndexError, "it is "),
        (torch.tensor([1]), "users", IndexError, "it is "),
        (3, "users", TypeError, "it is 3"),
    ],
)
def test_a_field_that_a_batch_lacks_is_told_with_the_variable(store, batch, source, error, told):
    """The message was the name of the field alone."""
    table = store.get_variable("t", dim=1)
    for given in (table, kt.Embedding(table), kt.EmbeddingBagCollection({"t": table})):
        batches = kt.prefetching([batch, batch], {given: source})
        next(batches)
        with pytest.raises(error, match=f"no field {source!r}, where the ids of 't' should be; {told}"):
            next(batches)


def test_a_collection_is_read_ahead_for_what_its_forward_takes(open_store, tmp_path):
    def batches():
        for at in range(6):
            ids, offsets = torch.arange(at, at + 40), torch.arange(0, 40, 2)
            yield {"x": {"a": (ids, offsets), "b": ids.view(20, 2), "c": (ids + 20, offsets, torch.ones(40))}}

    rows = []
    for ahead in (False, True):
        store = open_store(tmp_path / str(ahead))
        tables = {name: {"dim": 4, "optimizer": Adagrad(0.1), "initializer": 0.5, "hot_rows": 16} for name in "tu"}
        model = kt.EmbeddingBagCollection(tables, {"a": "t", "b": "u", "c": "t"}, store=store)
        optimizer = kt.Optimizer(model)
        for batch in kt.prefetching(batches(), {model: "x"}) if ahead else batches():
            sum(part.square().sum() for part in model(batch["x"]).values()).backward()
            optimizer.step()
        rows.append([store.variables[name].export()[1] for name in "tu"])
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {table.name: keys.tolist() for table, keys in model.keys_by_variable(batch["x"]).items()} == {
        "t": [*range(5, 45), *range(25, 65)], "u": [*range(5, 45)],
    }  # fmt: skip
    with pytest.raises(ValueError, match="the feature 'c' is not given"):
        list(kt.prefetching([{}, {"a": batch["x"]["a"], "b": batch["x"]["b"]}], {model: lambda batch: batch}))


@pytest.mark.parametrize(
    ("ids", "depth", "error", "message"),
    [
        ([1], 1, TypeError, "ids must be a dict from variables"),
        ({"t": "ids"}, 1, TypeError, "expected a Variable, or a module of one, got 't'"),
        ({}, 0, ValueError, "depth must be at least 1"),
        ({}, 1.5, TypeError, "depth must be an int"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_once(ids, depth, error, message):
    with pytest.raises(error, match=message):
        kt.prefetching([], ids, depth)


def test_a_source_that_cannot_be_is_refused_at_once(store):
    with pytest.raises(TypeError, match="expected the name of a batch's field, or a function"):
        kt.prefetching([], {store.get_variable("t", dim=1): None})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler reads it
def test_a_compiled_step_trains_as_it_does_without(store):
    """The step of an optimizer and backwards were followed into NumPy, by a compiler that failed there."""
    tables = []
    for name in ("plain", "compiled"):
        variables = [
            store.get_variable(f"{name}{each}", dim=4, optimizer=Adagrad(0.1), initializer=0.5) for each in "ab"
        ]
        waiting, fused = kt.EmbeddingBag(variables[0]), kt.EmbeddingBag(variables[1], fused=True)
        optimizer = kt.Optimizer(waiting)

        def train(ids: torch.Tensor, waiting=waiting, fused=fused, optimizer=optimizer) -> None:
            (waiting(ids) * fused(ids)).sum().backward()
            torch.nn.utils.clip_grad_norm_(optimizer.leaves, 1.0)
            optimizer.step()
            optimizer.zero_grad()

        call = torch.compile(train, backend="aot_eager") if name == "compiled" else train
        for seed in range(2):
            call(torch.randint(0, 50, (8, 3), generator=torch.Generator().manual_seed(seed)))
        tables.append([variable.export()[1] for variable in variables])
    for one, other in zip(*tables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
