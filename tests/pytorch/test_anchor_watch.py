"""Rows that would miss clipping or accumulation of a model's gradients: the step says so."""

from __future__ import annotations

import pickle

import pytest
import torch

import kvemb.torch as kt
from kvemb.optimizers import SGD
from kvemb.torch.anchor_watch import AnchorWatch

IDS = torch.arange(8).reshape(2, 4)


@pytest.fixture
def model(store, request):
    """A bag and a linear layer. The test's parameter: whether the bag is fused."""
    bag = kt.EmbeddingBag("words", 3, store=store, optimizer=SGD(0.5), initializer=1.0, fused=request.param)
    return torch.nn.Sequential(bag, torch.nn.Linear(3, 1))


def backward(model):
    model(IDS).square().sum().backward()


def rows(model):
    return model[0].variable.lookup(IDS.reshape(-1), touch=False).copy()


CHANGES = {
    "clip_grad_norm_": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "clip_grad_value_": lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.1),
    "by hand": lambda model: [each.grad.div_(2) for each in model.parameters()],
}


@pytest.mark.parametrize("model", [False], indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_a_step_refuses_gradients_that_missed_what_was_done_to_all_others(model, change):
    dense, optimizer = torch.optim.SGD(model.parameters(), 0.1), kt.Optimizer(model)
    backward(model)
    CHANGES[change](model)
    before = rows(model)
    with pytest.raises(RuntimeError, match=r"those of the rows of 'words' were not: pass optimizer\.leaves"):
        optimizer.step()
    assert (rows(model) == before).all()
    optimizer.zero_grad()
    dense.zero_grad()
    backward(model)
    optimizer.step()
    assert (rows(model) != before).any()


@pytest.mark.parametrize("model", [False], indirect=True)
def test_ignore_clipping_takes_the_gradients_of_rows_as_they_are(model):
    kt.ignore_clipping(model)
    optimizer, before = kt.Optimizer(model), rows(model)
    backward(model)
    (gradient,) = [leaf.grad.clone() for leaf in optimizer.leaves]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    optimizer.step()
    assert rows(model) == pytest.approx(before - 0.5 * gradient.numpy())


@pytest.mark.parametrize("model", [True], indirect=True)
def test_ignore_clipping_is_for_fused_rows_too(model):
    kt.ignore_clipping(model)
    backward(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
    torch.optim.SGD(model[1].parameters(), 0.1).step()


def test_ignore_clipping_of_no_rows_raises():
    with pytest.raises(ValueError, match=r"no module of kvemb\.torch"):
        kt.ignore_clipping(torch.nn.Linear(2, 1))
    with pytest.raises(TypeError, match=r"as in ignore_clipping\(model\), got 3"):
        kt.ignore_clipping(3)


@pytest.mark.parametrize("model", [False], indirect=True)
def test_gradients_that_were_clipped_with_the_others_are_taken(model):
    dense, optimizer = torch.optim.SGD(model.parameters(), 0.1), kt.Optimizer(model)
    whole = kt.Optimizer(model, dense=torch.optim.SGD(model[1].parameters(), 0.1))
    for taking, given in (
        (optimizer, lambda: [*model.parameters(), *optimizer.leaves]),
        (whole, lambda: [each for group in whole.param_groups for each in group["params"]]),
    ):
        for set_to_none in (True, False):
            for _ in range(2):  # accumulated
                backward(model)
            torch.nn.utils.clip_grad_norm_(given(), 0.1)
            taking.step()
            taking.zero_grad(set_to_none)
            dense.zero_grad(set_to_none)
    backward(model)
    optimizer.step()  # nothing was clipped


@pytest.mark.parametrize("model", [True], indirect=True)
@pytest.mark.parametrize("change", CHANGES)
def test_fused_rows_refuse_the_step_of_gradients_that_were_changed_after_theirs(model, change):
    dense = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        backward(model)
        dense.step()
        dense.zero_grad()
    backward(model)
    CHANGES[change](model)
    with pytest.raises(RuntimeError, match="the rows of 'words' had taken their step with fused=True"):
        dense.step()
    dense.zero_grad()
    backward(model)
    torch.nn.utils.clip_grad_norm_(model[1].parameters(), 0.1)  # the dense part alone, knowingly
    dense.step()


@pytest.mark.parametrize("model", [True], indirect=True)
def test_fused_rows_refuse_accumulation_and_two_calls_in_one_pass_are_none(model):
    dense = torch.optim.SGD(model.parameters(), 0.1)
    (model(IDS) + model(IDS)).sum().backward()
    dense.step()
    for _ in range(2):
        backward(model)
    with pytest.raises(
        RuntimeError, match=r"2 backward passes have gone by .* the rows of 'words' took a step in each"
    ):
        dense.step()
    backward(model)
    dense.step()
    alone = torch.optim.SGD(model[1].parameters(), 0.1)  # without the anchor, steps may be taken as one likes
    for _ in range(2):
        backward(model)
    alone.step()


def test_a_copy_watches_nothing_yet():
    anchor = torch.nn.Parameter(torch.zeros(1))
    watch = AnchorWatch()
    watch.watch(anchor)
    anchor.sum().backward()
    assert not watch.changed
    anchor.grad.mul_(2)
    assert watch.changed
    assert not pickle.loads(pickle.dumps(watch)).changed
    anchor.grad = None
    assert not watch.changed
    del anchor
    assert not watch.changed
