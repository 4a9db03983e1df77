"""Results follow half(), to(dtype) and the like, as those of torch.nn do; rows and their gradients keep their dtype."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

import kvemb
import kvemb.torch as kt
from kvemb.optimizers import SGD

IDS = torch.tensor([[1], [2]])
DTYPES = [torch.float16, torch.bfloat16, torch.float64]
KINDS = [kt.Embedding, kt.EmbeddingBag, kt.EmbeddingBagCollection]


class Rows(torch.nn.Module):
    """A module of some kind, which takes IDS and returns (2, 3)."""

    def __init__(self, kind: type, variable: kvemb.Variable, **given: object) -> None:
        super().__init__()
        self.collects = kind is kt.EmbeddingBagCollection
        self.rows = kind({"t": variable} if self.collects else variable, **given)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows({"t": ids})["t"] if self.collects else self.rows(ids).view(2, 3)


def variable_of(loaded, dtype: torch.dtype = torch.float32) -> kvemb.Variable:
    return loaded(torch.arange(12, dtype=dtype).view(4, 3) / 7, optimizer=SGD(1.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_computes_and_trains_in_its_dtype(loaded, kind, dtype):
    variable = variable_of(loaded)
    model = torch.nn.Sequential(Rows(kind, variable), torch.nn.Linear(3, 1))
    before = model[0](IDS).detach()
    model.to(dtype)
    out = model[0](IDS)
    assert out.dtype == dtype
    torch.testing.assert_close(out.detach(), before.to(dtype))
    optimizer = kt.Optimizer(model)
    model(IDS).sum().backward()
    (leaf,) = optimizer.leaves
    assert leaf.grad.dtype == torch.float32
    optimizer.step()
    stepped = before - model[1].weight.detach().float()
    torch.testing.assert_close(torch.from_numpy(variable.lookup([1, 2])), stepped)
    assert model.float()[0](IDS).dtype == torch.float32
    model(IDS).sum().backward()
    assert optimizer.leaves[0].grad.dtype == torch.float32


CONVERSIONS: list[tuple[Callable[[torch.nn.Module], object], torch.dtype, torch.dtype]] = [
    (lambda model: model.half(), torch.float16, torch.float16),
    (lambda model: model.bfloat16(), torch.bfloat16, torch.bfloat16),
    (lambda model: model.double(), torch.float64, torch.float64),
    (lambda model: model.float(), torch.float32, torch.float32),
    (lambda model: model.half().float(), torch.float32, torch.float32),
    (lambda model: model.type(torch.float16), torch.float16, torch.float16),
    (lambda model: model.to(torch.zeros(1).half()), torch.float16, torch.float16),
    (lambda model: model.half().to("cpu"), torch.float16, torch.float16),
    # These leave dtypes as they are.
    (lambda model: model.to("cpu"), torch.float32, torch.float64),
    (lambda model: model.to("meta"), torch.float32, torch.float64),
    (lambda model: model.to_empty(device="cpu"), torch.float32, torch.float64),
    (lambda model: model.share_memory(), torch.float32, torch.float64),
    (lambda model: model.eval().train().requires_grad_(False), torch.float32, torch.float64),
]


@pytest.mark.parametrize("number", range(len(CONVERSIONS)))
def test_rows_of_each_dtype_follow_as_weights_would(loaded, number):
    """torch.nn has a weight of each dtype beside them."""
    convert, of_single, of_double = CONVERSIONS[number]
    weights = torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.float64)
    named = dict(zip("sd", weights, strict=True))
    theirs = torch.nn.ModuleDict({name: torch.nn.Embedding.from_pretrained(each) for name, each in named.items()})
    ours = kt.EmbeddingBagCollection({name: loaded(each) for name, each in named.items()})
    for model in (theirs, ours):
        convert(model)
    assert [theirs[name].weight.dtype for name in "sd"] == [of_single, of_double]
    out = ours({"s": IDS, "d": IDS})
    assert [out[name].dtype for name in "sd"] == [of_single, of_double]
    assert (list(ours.buffers()), list(ours.state_dict())) == ([], ["_extra_state"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_given_output_dtype_stays(loaded, kind):
    rows = Rows(kind, variable_of(loaded), output_dtype=torch.bfloat16)
    for convert in (rows.half, rows.double, rows.float):
        convert()
        assert rows(IDS).dtype == torch.bfloat16


def test_copies_have_the_dtype_and_one_of_their_own(loaded):
    rows = kt.Embedding(variable_of(loaded)).half()
    other = copy.copy(rows)
    assert other(IDS).dtype == torch.float16
    other.double()
    assert (other(IDS).dtype, rows(IDS).dtype) == (torch.float64, torch.float16)
    rows.variable.resource_handle[0].flush()
    arrived = pickle.loads(pickle.dumps(rows)).eval()
    assert arrived(IDS).dtype == torch.float16
    arrived.variable.resource_handle[0].close()
    fresh = kt.Embedding(rows.variable)
    fresh.load_state_dict(rows.state_dict())
    assert fresh(IDS).dtype == torch.float32


def test_autocast_leaves_the_dtype_of_rows(loaded):
    model = torch.nn.Sequential(Rows(kt.Embedding, variable_of(loaded)), torch.nn.Linear(3, 1))
    for dtype in (torch.float32, torch.float16):
        model.to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (model[0](IDS).dtype, model(IDS).dtype) == (dtype, torch.bfloat16)


def test_bags_are_pooled_before_they_are_rounded(loaded):
    """2048 + 1 has no float16, and 2048 + 1 + 1 does."""
    variable = loaded(torch.tensor([[2048.0], [1.0], [1.0]]))
    bags = kt.EmbeddingBag(variable, mode="sum").half()
    assert bags(torch.tensor([[0, 1, 2]])).tolist() == [[2050.0]]
    assert np.float16(2048) + np.float16(1) == 2048
