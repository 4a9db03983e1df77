"""EmbeddingBagCollection: features over tables give and train what bags of their own do, in one call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import SGD, Adam

DIMS = {"item": 3, "user": 2}
FEATURES = {"clicked": "item", "user_id": "user", "shown": "item"}


class Jagged:
    """What a KeyedJaggedTensor of torchrec shows."""

    def __init__(self, parts: Mapping[str, tuple[torch.Tensor, ...]], weights: bool) -> None:
        self._keys = list(parts)
        self._values = torch.cat([part[0] for part in parts.values()])
        lengths = [torch.diff(part[1], append=torch.tensor([len(part[0])])) for part in parts.values()]
        self._offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
        self._weights = torch.cat([part[2] for part in parts.values()]) if weights else None

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def offsets(self):
        return self._offsets

    def weights_or_none(self):
        return self._weights


@pytest.fixture
def weights():
    torch.manual_seed(1)
    return {name: torch.randn(20, dim) for name, dim in DIMS.items()}


@pytest.fixture
def tables(loaded, weights):
    return {name: loaded(weight) for name, weight in weights.items()}


def batch(seed: int, *, ones: bool) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(seed)
    if ones:
        return {name: (torch.randint(0, 20, (4,)), torch.arange(4)) for name in FEATURES}
    return {name: (torch.randint(0, 20, (9,)), torch.tensor([0, 2, 2, 5])) for name in FEATURES}


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", {"item": "max", "user": "sum"}])
@pytest.mark.parametrize("fused", [False, True])
def test_training_equals_torch(tables, weights, ones, mode, fused):
    modes = mode if isinstance(mode, dict) else dict.fromkeys(tables, mode)
    theirs = {
        name: torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode=modes[name])
        for name, weight in weights.items()
    }
    module = kt.EmbeddingBagCollection(tables, FEATURES, mode, fused=fused)
    ours = kt.Optimizer(module)
    optimizer = torch.optim.SGD([part.weight for part in theirs.values()], 0.5)
    for seed in range(3):
        given = batch(seed, ones=ones)
        expected = {name: theirs[table](*given[name]) for name, table in FEATURES.items()}
        found = module(given)
        assert list(found) == list(FEATURES)
        for name in FEATURES:
            torch.testing.assert_close(found[name], expected[name])
        optimizer.zero_grad()
        for outs in (expected, found):
            sum((out.sin() * (at + 1)).sum() for at, out in enumerate(outs.values())).backward()
        optimizer.step()
        ours.step()
        for name, table in tables.items():
            rows = torch.from_numpy(table.lookup(np.arange(20)))
            torch.testing.assert_close(rows, theirs[name].weight.detach())


@pytest.mark.parametrize("weighted", [False, True])
def test_a_jagged_tensor_is_a_batch(tables, weighted):
    module = kt.EmbeddingBagCollection(tables, FEATURES)
    given = {
        name: (ids, offsets, torch.rand(len(ids))) if weighted else (ids, offsets)
        for name, (ids, offsets) in batch(1, ones=False).items()
    }
    found = module(Jagged({**given, "other": given["shown"]}, weighted))
    expected = module(given)
    for name in FEATURES:
        torch.testing.assert_close(found[name], expected[name])


class JaggedOfBatchSizes(Jagged):
    """What one of torchrec shows whose batch sizes vary by feature."""

    def __init__(self, parts: Mapping[str, tuple[torch.Tensor, ...]]) -> None:
        super().__init__(parts, weights=False)
        self.sizes = [len(offsets) for _, offsets in parts.values()]

    def stride_per_key(self):
        return self.sizes


def test_features_of_a_jagged_tensor_may_differ_in_their_number_of_bags(tables):
    """They were cut into equal numbers of bags, where the total could be: bags of one feature became another's."""
    module = kt.EmbeddingBagCollection(tables, FEATURES)
    counts = {"user_id": 1, "shown": 3, "clicked": 5, "other": 0}
    given = {name: (torch.arange(2 * count), torch.arange(0, 2 * count, 2)) for name, count in counts.items()}
    jagged = JaggedOfBatchSizes(given)
    found, expected = module(jagged), module(given)
    for name in FEATURES:
        torch.testing.assert_close(found[name], expected[name])
    jagged.sizes[1] = 4
    with pytest.raises(ValueError, match=r"expected 11 offsets for 4 features of \[1, 4, 5, 0\] bags, got 10"):
        module(jagged)


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_of_the_rows_that_torchs_sparse_gradients_name(store, ones, fused):
    """Those of features that the loss leaves out stay as they are; rows whose gradient is 0 take part."""
    features = ("a", "b", "none")
    variable = store.get_variable("v", dim=2, optimizer=Adam(0.5, bias_correction="global", epsilon_hat=True))
    module = kt.EmbeddingBagCollection({"t": variable}, dict.fromkeys(features, "t"), fused=fused)
    ours = kt.Optimizer(module)
    theirs = torch.nn.EmbeddingBag.from_pretrained(torch.zeros(20, 2), freeze=False, mode="sum", sparse=True)
    optimizer = torch.optim.SparseAdam([theirs.weight], lr=0.5)
    stepped: set[int] = set()
    losses = [
        lambda out: out["a"].sum(),
        lambda out: (out["a"] - out["b"]).sum() + out["none"].sum(),
        lambda out: out["b"][:1].sin().sum(),
        lambda out: out["a"].sum() * 0,
        lambda out: out["none"].sum(),  # the last: SparseAdam counts a step of no rows
    ]
    for first, loss in enumerate(losses):
        ids = torch.tensor([first, first + 3]) if ones else torch.tensor([first, first + 3, first, first + 5])
        given = {
            "a": (ids, torch.arange(2), torch.arange(len(ids)) * 0.5),  # the weight of its first id is 0
            "b": (ids + 5, torch.arange(2), torch.ones(len(ids))),
            "none": (ids[:0], torch.zeros(2, dtype=torch.int64), torch.ones(0)),
        }
        optimizer.zero_grad()
        loss({name: theirs(*bags) for name, bags in given.items()}).backward()
        loss(module(given)).backward()
        stepped |= {*theirs.weight.grad.coalesce().indices()[0].tolist()}
        optimizer.step()
        ours.step()
        assert set(variable.export()[0].tolist()) == stepped
        torch.testing.assert_close(torch.from_numpy(variable.lookup(np.arange(20))), theirs.weight.detach())


def test_one_call_into_the_store_for_all_features(tables, monkeypatch):
    calls: list[object] = []
    for name in ("lookup", "apply_gradients"):
        real = getattr(kvemb.Store, name)
        monkeypatch.setattr(
            kvemb.Store, name, lambda *given, real=real, **more: calls.append(real.__name__) or real(*given, **more)
        )
    module = kt.EmbeddingBagCollection(tables, FEATURES, fused=True)
    for ones in (True, False):
        sum(out.sum() for out in module(batch(1, ones=ones)).values()).backward()
    assert calls == ["lookup", "apply_gradients"] * 2


def test_tables_by_their_arguments(store):
    module = kt.EmbeddingBagCollection(
        {"item": {"dim": 3, "optimizer": SGD(1.0)}, "user": {"dim": 2, "optimizer": SGD(1.0)}}, store=store
    )
    assert {name: variable.dim for name, variable in module.tables.items()} == DIMS
    assert sorted(store.variables) == ["item", "user"]
    found = module({"item": torch.zeros(2, 1, dtype=torch.int64), "user": torch.zeros(2, 3, dtype=torch.int64)})
    assert {name: tuple(out.shape) for name, out in found.items()} == {"item": (2, 3), "user": (2, 2)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (({},), TypeError, "tables must be a dict .* as in {'ads': {'dim': 16}}, got {}"),
        (({"a": 3},), TypeError, r"tables\['a'\] must be a Variable or arguments such as {'dim': 16}, got 3"),
        (({"a": {"dim": 2, "pooling": "sum"}},), TypeError, "no argument pooling here: give mode"),
        (({"a": {"num_embeddings": 3}},), TypeError, "keys are any int64"),
        (({"a": {}}, {"f": "b"}), ValueError, r"features\['f'\] must be .* its table, got 'b'; there is a"),
        (({"a": {}}, {"a": ["f", "g"]}), TypeError, r"features\['a'\] must be the name of its table, got \['f', 'g'\]"),
        (({"a": {}}, ["a"]), TypeError, "features must be a dict from feature to table"),
        (({"a": {}, "b": {}}, {"f": "b"}), ValueError, "no feature names the table 'a'"),
        (({"a": {}}, None, "median"), ValueError, "mode must be one of"),
        (({"a": {}}, None, "sum", {"b": 1}), ValueError, "padding_idx must name tables, got 'b'; there is a"),
        (({"a": {"dim": 2}}, None, "sum", "0"), TypeError, "padding_idx"),
        (({"a": {}}, None, {"b": "sum"}), ValueError, "mode must be one mode, or a dict"),
    ],
    ids=str,
)
def test_tables_features_and_modes_that_do_not_fit_are_refused(store, arguments, error, message):
    padding = arguments[3] if len(arguments) > 3 else None
    with pytest.raises(error, match=message):
        kt.EmbeddingBagCollection(*arguments[:3], padding_idx=padding, store=store)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ValueError, "the feature 'clicked' is not given"),
        (3, TypeError, "expected a dict by feature, or a KeyedJaggedTensor"),
        ({name: torch.tensor([1]) for name in FEATURES}, ValueError, r"pass clicked\[:, None\]"),
        (dict.fromkeys(FEATURES, ()), TypeError, "got 0 parts"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_batches_are_refused_before_anything_is_looked_up(tables, given, error, message):
    with pytest.raises(error, match=message):
        kt.EmbeddingBagCollection(tables, FEATURES)(given)
    assert {table.stats.hits for table in tables.values()} == {0}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("fused", [False, True])
def test_padding_is_left_out_of_bags_and_steps_as_by_torch(tables, weights, mode, fused):
    theirs = {
        name: torch.nn.EmbeddingBag.from_pretrained(weight.clone(), freeze=False, mode=mode, padding_idx=0)
        for name, weight in weights.items()
    }
    module = kt.EmbeddingBagCollection(tables, FEATURES, mode, padding_idx=0, fused=fused)
    given = {name: torch.tensor([[1, 0, 2], [3, 3, 0], [0, 0, 0]]) for name in FEATURES}
    expected = {name: theirs[table](given[name]) for name, table in FEATURES.items()}
    found = module(given)
    ours, optimizer = kt.Optimizer(module), torch.optim.SGD([part.weight for part in theirs.values()], 0.5)
    for outs in (expected, found):
        torch.cat(list(outs.values()), dim=1).square().sum().backward()
    optimizer.step()
    if not fused:
        ours.step()
    for name in FEATURES:
        torch.testing.assert_close(found[name], expected[name])
    for name, table in tables.items():
        np.testing.assert_allclose(table.lookup(np.arange(20)), theirs[name].weight.detach(), rtol=1e-6)
    assert {name: sorted({*keys}) for name, keys in module.keys_by_variable(given).items()} == {
        table: [1, 2, 3] for table in tables.values()
    }


def test_a_negative_padding_of_one_table_makes_no_row_and_fits_no_narrow_dtype(store):
    table = {"dim": 2, "optimizer": SGD(0.5), "initializer": 1.0}
    module = kt.EmbeddingBagCollection({"a": table, "b": table}, padding_idx={"a": -1}, store=store)
    rows = kt.Optimizer(module)
    given = {"a": torch.tensor([[5, -1], [-1, -1]]), "b": torch.tensor([[5, -1], [-1, -1]])}
    out = module(given)
    assert out["a"].tolist() == [[1, 1], [0, 0]]
    assert out["b"].tolist() == [[2, 2], [2, 2]]
    (out["a"].sum() + out["b"].sum()).backward()
    rows.step()
    assert module.tables["a"].export()[0].tolist() == [5]
    assert module.tables["b"].export()[0].tolist() == [-1, 5]
    assert module({"a": torch.tensor([[255]], dtype=torch.uint8), "b": given["b"]})["a"].tolist() == [[1, 1]]


@pytest.mark.parametrize("jagged", [False, True])
def test_an_absent_feature_has_empty_bags_and_trains_nothing(tables, weights, jagged):
    module = kt.EmbeddingBagCollection(tables, FEATURES, allow_absent=True)
    whole = kt.EmbeddingBagCollection(tables, FEATURES)
    given = batch(1, ones=False)
    none = torch.tensor([], dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    some, rows = {"clicked": given["clicked"]}, kt.Optimizer(module)
    found = module(Jagged(some, weights=False) if jagged else some)
    expected = whole({**dict.fromkeys(FEATURES, none), **some})
    assert list(found) == list(FEATURES)
    for name in FEATURES:
        torch.testing.assert_close(found[name], expected[name])
    assert found["user_id"].tolist() == [[0, 0]] * 4
    sum(part.square().sum() for part in found.values()).backward()
    rows.step()
    np.testing.assert_array_equal(tables["user"].lookup(np.arange(20)), weights["user"])
    assert not np.array_equal(tables["item"].lookup(np.arange(20)), weights["item"])
    assert list(module.keys_by_variable(some)) == [tables["item"]]


def test_absent_features_are_refused_unless_allowed_and_unless_the_number_of_bags_is_known(tables):
    given = batch(1, ones=False)
    with pytest.raises(ValueError, match=r"'user_id' is not given; there is clicked; .* allow_absent=True"):
        kt.EmbeddingBagCollection(tables, FEATURES)({"clicked": given["clicked"]})
    module = kt.EmbeddingBagCollection(tables, FEATURES, allow_absent=True)
    with pytest.raises(ValueError, match=r"'clicked' is not given; there is click$"):
        module({"click": given["clicked"]})
    with pytest.raises(ValueError, match=r"'user_id' is absent, and others differ .* {'clicked': 4, 'shown': 1}"):
        module({"clicked": given["clicked"], "shown": torch.tensor([[1]])})
    assert {table.stats.hits for table in tables.values()} == {0}


def test_a_store_is_refused_where_no_variable_is_made(tables, store):
    """It was ignored."""
    with pytest.raises(ValueError, match="store is for new variables, but every table is a Variable"):
        kt.EmbeddingBagCollection(tables, FEATURES, store=store)


def test_a_variable_is_one_table(tables):
    with pytest.raises(ValueError, match="two tables are the same variable"):
        kt.EmbeddingBagCollection({"a": tables["item"], "b": tables["item"]})


@pytest.mark.parametrize(
    ("names", "offsets", "message"),
    [
        (["clicked", "clicked"], [0, 1, 3], "given twice: clicked, clicked"),
        (["clicked", "shown"], [1, 2, 3], "offsets must begin with 0, got 1"),
        (["clicked", "shown"], [0, 3, 1], "offsets must not descend, got 3, then 1"),
        (["clicked", "shown"], [0, 1, 2], "offsets must end with 3, the number of values"),
    ],
)
def test_offsets_of_a_jagged_tensor_that_leave_ids_out_are_refused(tables, names, offsets, message):
    given = Jagged(batch(1, ones=True), False)
    given._keys, given._values, given._offsets = names, torch.arange(3), torch.tensor(offsets)
    with pytest.raises(ValueError, match=message):
        kt.EmbeddingBagCollection({"item": tables["item"]}, {"clicked": "item"})(given)
