"""EmbeddingBag gives and trains what torch.nn.EmbeddingBag with dense parameters does, whatever the bags."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import SGD

KEYS, DIM = 40, 3
BAGS = st.lists(st.lists(st.integers(0, KEYS - 1), max_size=6), min_size=1, max_size=6)


def flat(bags: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = np.cumsum([0, *map(len, bags)])
    return torch.tensor([key for bag in bags for key in bag], dtype=torch.int64), torch.from_numpy(offsets)


@given(
    batches=st.lists(BAGS, min_size=1, max_size=3),
    mode=st.sampled_from(["sum", "mean", "max"]),
    padding=st.sampled_from([None, 0, 7]),
    last=st.booleans(),
    weighted=st.booleans(),
    scaled=st.booleans(),
    fused=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_training_equals_torch(tmp_path_factory, batches, mode, padding, last, weighted, scaled, fused, seed):
    torch.manual_seed(seed)
    options = {
        "mode": mode,
        "padding_idx": padding,
        "include_last_offset": last,
    }
    scaled = scaled and mode != "max"
    theirs = torch.nn.EmbeddingBag(KEYS, DIM, **options)
    their_optimizer = torch.optim.SGD(theirs.parameters(), 0.5)
    with kvemb.open(tmp_path_factory.mktemp("store") / "s", memory_budget="4MiB") as store:
        variable = store.get_variable("t", dim=DIM, optimizer=SGD(0.5), hot_rows=16)
        variable.upsert(np.arange(KEYS), theirs.weight.detach().numpy().copy())
        ours = kt.EmbeddingBag(variable, fused=fused, scale_grad_by_freq=scaled, **options)
        our_optimizer = kt.Optimizer(ours)
        for bags in batches:
            ids, offsets = flat(bags)
            offsets = offsets if last else offsets[:-1]
            chosen = [torch.rand(len(ids)).requires_grad_() for _ in range(2)] if weighted and mode == "sum" else None
            if chosen:
                chosen[1].data[:] = chosen[0].data
            expected = theirs(ids, offsets, chosen[0] if chosen else None)
            found = ours(ids, offsets, chosen[1] if chosen else None)
            torch.testing.assert_close(found, expected)
            for out, optimizer in ((expected, their_optimizer), (found, our_optimizer)):
                optimizer.zero_grad()
                if out.requires_grad:
                    (out * out + out.sin()).sum().backward()
                if scaled and out is expected and len(ids):  # torch's own kernel divides by another key's count
                    theirs.weight.grad /= torch.bincount(ids, minlength=KEYS).clamp(min=1)[:, None]
                optimizer.step()
            if chosen and len(ids):
                torch.testing.assert_close(chosen[1].grad, chosen[0].grad)
            rows = torch.from_numpy(variable.lookup(np.arange(KEYS), touch=False))
            torch.testing.assert_close(rows, theirs.weight.detach())


def weight_of(seed: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(KEYS, DIM, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_as_rows_and_bags_of_one(loaded, mode):
    weight = weight_of(1)
    module, theirs = (
        kt.EmbeddingBag(loaded(weight), mode=mode),
        torch.nn.EmbeddingBag.from_pretrained(weight, mode=mode),
    )
    for shape in ((4, 3), (4, 1), (1, 4)):
        ids = torch.randint(0, KEYS, shape)
        torch.testing.assert_close(module(ids), theirs(ids))
        torch.testing.assert_close(module(ids.to(torch.int32)), theirs(ids))
    ids = torch.tensor([3, 3, 9])
    for offsets in ([0, 1, 2], [0, 1, 1], [0, 0, 0], [0], [0, 3]):
        torch.testing.assert_close(module(ids, torch.tensor(offsets)), theirs(ids, torch.tensor(offsets)))
    assert module(torch.zeros((2, 0), dtype=torch.int64)).tolist() == [[0.0] * DIM] * 2
    assert module(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).shape == (0, DIM)


@pytest.mark.parametrize("padding", [None, 1])
def test_a_batch_of_empty_bags_alone_has_a_backward(store, padding):
    module = kt.EmbeddingBag("b", 2, padding_idx=padding, store=store, optimizer=SGD(1.0))
    optimizer = kt.Optimizer(module)
    none = torch.zeros(0, dtype=torch.int64)
    for batch in (
        (none.reshape(0, 3),),
        (none.reshape(3, 0),),
        (none, none),
        (none, torch.zeros(3, dtype=torch.int64)),
    ):
        out = module(*batch)
        out.sum().backward()
        assert not out.any()
        optimizer.step()
    assert module.variable.size() == 0


def test_weights_of_padding_alone_have_a_gradient(store):
    module = kt.EmbeddingBag("b", 2, padding_idx=1, mode="sum", store=store, optimizer=SGD(1.0))
    weights = torch.ones(2, 2, requires_grad=True)
    module(torch.tensor([[1, 1], [1, 1]]), None, weights).sum().backward()
    assert weights.grad.tolist() == [[0.0, 0.0]] * 2


def test_max_norm_scales_rows_before_they_are_pooled(loaded):
    weight = weight_of(3)
    norms = weight.norm(dim=1, keepdim=True)
    scaled = weight * (0.7 / norms).clamp(max=1)
    ids = torch.tensor([[1, 2], [3, 3]])
    for options in ({}, {"padding_idx": 39}):
        module = kt.EmbeddingBag(loaded(weight), max_norm=0.7, mode="sum", **options)
        torch.testing.assert_close(module(ids), scaled[ids].sum(1))
        torch.testing.assert_close(module(ids[:, :1]), scaled[ids[:, 0]])


def test_padding_is_never_looked_up_or_made(store):
    module = kt.EmbeddingBag("b", 2, padding_idx=-1, mode="sum", store=store, optimizer=SGD(1.0), initializer=1.0)
    optimizer = kt.Optimizer(module)
    out = module(torch.tensor([[-1, 5], [-1, -1]]))
    assert out.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    out.sum().backward()
    assert [leaf.grad.tolist() for leaf in optimizer.leaves] == [[[1.0, 1.0]]]
    optimizer.step()
    assert module.variable.export()[0].tolist() == [5]
    assert module.variable.stats.absent == 1


@pytest.mark.parametrize("padding", [-1, 300, 2**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_a_padding_key_that_ids_of_a_small_dtype_cannot_be(store, dtype, padding):
    bags = kt.EmbeddingBag("b", 2, padding_idx=padding, mode="sum", store=store, initializer=1.0)
    rows = kt.Embedding(bags.variable, padding_idx=padding)
    ids = torch.tensor([[44, 5]], dtype=dtype)
    assert bags(ids).tolist() == [[2.0, 2.0]]
    assert rows(ids).tolist() == [[[1.0, 1.0]] * 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([torch.tensor([1, 2])], ValueError, r"has one dimension, so give offsets; .* pass ids\[:, None\]"),
        ([torch.tensor([1, 2]), torch.tensor([1])], ValueError, "offsets must begin with 0, got 1"),
        ([torch.tensor([1, 2]), torch.tensor([0, 2, 1])], ValueError, "must not descend, got 2, then 1 at index 2"),
        ([torch.tensor([1, 2]), torch.tensor([0, 3])], ValueError, "at most 2, the number of ids, got 3"),
        ([torch.tensor([3, 4, 5]), torch.tensor([1, 2])], ValueError, r"0, got 1; from lengths, offsets are cumsum"),
        ([torch.tensor([1, 2]), torch.tensor([0.0])], TypeError, r"got torch.float32; if these .* offsets.long\(\)"),
        ([torch.tensor([1, 2]), torch.tensor([[0]])], ValueError, "offsets must have one dimension"),
        ([torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)], ValueError, "begin with 0, got none for 2 ids"),
        ([torch.tensor([[1, 2]]), torch.tensor([0])], ValueError, "offsets must be None"),
        ([torch.tensor([[[1]]])], ValueError, "one or two dimensions"),
        ([torch.tensor(1)], ValueError, "one or two dimensions"),
        ([torch.tensor([[1, 2]]), None, torch.ones(2)], ValueError, r"shape of ids, \(1, 2\), got \(2,\)"),
        ([torch.tensor([[1]]), None, torch.tensor([[1]])], TypeError, r"got torch.int64; pass weights.float\(\)"),
        ([torch.tensor([[1.5]])], TypeError, "got torch.float32"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_bags_are_refused_before_anything_is_looked_up(loaded, arguments, error, message):
    module = kt.EmbeddingBag(loaded(weight_of(4)), mode="sum")
    with pytest.raises(error, match=message):
        module(*arguments)
    assert (module.variable.stats.hits + module.variable.stats.misses, module.pending.waiting) == (0, [])


def test_options_of_bags_that_do_not_fit_are_refused(loaded):
    variable = loaded(weight_of(5))
    with pytest.raises(ValueError, match="mode must be one of sum, mean, max"):
        kt.EmbeddingBag(variable, mode="median")
    with pytest.raises(ValueError, match="not supported with mode='max'"):
        kt.EmbeddingBag(variable, mode="max", scale_grad_by_freq=True)
    with pytest.raises(ValueError, match="per_sample_weights need mode='sum', got mode='mean'"):
        kt.EmbeddingBag(variable)(torch.tensor([[1]]), None, torch.ones(1, 1))
    module = kt.EmbeddingBag(variable, include_last_offset=True)
    with pytest.raises(
        ValueError, match="with include_last_offset=True, offsets must end with 2, the number of ids, got 1"
    ):
        module(torch.tensor([1, 2]), torch.tensor([0, 1]))


class Sums(kvemb.RestrictPolicy):
    """A user's policy, which the kernels do not know."""

    def score(self, old_score, count, now):
        return old_score + count


@pytest.mark.parametrize("policy", [None, Sums()])
def test_each_occurrence_is_a_use_in_every_module(store, policy):
    """Bags counted one use of each distinct key of a call, and Embedding each occurrence."""
    ids = torch.tensor([[5, 7, 5], [5, 9, 7], [8, 8, 7]])
    each = {5: 3.0, 7: 3.0, 8: 2.0, 9: 1.0}

    def table(name):
        made = store.get_variable(name, dim=1, restrict_policy=policy, hot_rows=16, optimizer=kvemb.optimizers.SGD(1.0))
        made.upsert(np.arange(100), np.ones((100, 1), np.float32))  # most are cold
        return made

    cases = {
        "rows": (kt.Embedding, {}, each),
        "by frequency": (kt.Embedding, {"scale_grad_by_freq": True}, each),
        "bags": (kt.EmbeddingBag, {}, each),
        "bags by frequency": (kt.EmbeddingBag, {"scale_grad_by_freq": True, "mode": "sum"}, each),
        "with padding": (kt.EmbeddingBag, {"padding_idx": 7}, {**each, 7: 0.0}),
    }
    for name, (kind, how, expected) in cases.items():
        module = kind(table(name), **how)
        assert uses(module.variable, lambda module=module: module(ids)) == expected, name
        assert uses(module.variable, lambda module=module: module.eval()(ids)) == dict.fromkeys(each, 0.0)
    shared = table("shared")
    both = kt.EmbeddingBagCollection({"table": shared}, {"seen": "table", "bought": "table"})
    found = uses(shared, lambda: both({"seen": ids, "bought": torch.tensor([[5], [9]])}))
    assert found == {**each, 5: 4.0, 9: 2.0}


def uses(variable, call):
    """Return how many uses of each of four keys a call records."""
    keys, _, before = variable.export(with_scores=True)
    call()
    more = variable.export(with_scores=True)[2] - before
    return {int(key): float(more[keys == key][0]) for key in (5, 7, 8, 9)}
