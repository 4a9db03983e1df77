"""Optimizers against PyTorch's own, where it is installed: all rows in every step, or sparse touches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_optimizer import block_of, single

from kvemb.backends.cpu_rows import CpuRows
from kvemb.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    AMSGrad,
    Momentum,
    NAdam,
    Nesterov,
    Optimizer,
    RMSProp,
)

torch: Any = pytest.importorskip("torch", reason="torch is not installed; it is of kvemb[test-all]")
pytestmark = pytest.mark.needs("torch")
ROWS, DIM, STEPS = 7, 5, 80
ADAM = {"betas": (0.8, 0.95), "eps": 1e-4}
PAIRS: list[tuple[Optimizer, str, dict[str, Any]]] = [
    (SGD(0.1, weight_decay=0.1), "SGD", {"lr": 0.1, "weight_decay": 0.1}),
    (Momentum(0.1, 0.8, weight_decay=0.1), "SGD", {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}),
    (Nesterov(0.1, 0.8), "SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    (Adagrad(0.3, 0.2, 1e-5, weight_decay=0.1), "Adagrad",
     {"lr": 0.3, "initial_accumulator_value": 0.2, "eps": 1e-5, "weight_decay": 0.1}),
    (Adadelta(0.5, 0.8, 1e-4, weight_decay=0.1), "Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    (RMSProp(0.1, 0.9, 1e-4), "RMSprop", {"lr": 0.1, "alpha": 0.9, "eps": 1e-4}),
    (RMSProp(0.1, 0.9, 1e-4, 0.7, True, weight_decay=0.1), "RMSprop",
     {"lr": 0.1, "alpha": 0.9, "eps": 1e-4, "momentum": 0.7, "centered": True, "weight_decay": 0.1}),
    (Adam(0.1, 0.8, 0.95, 1e-4, weight_decay=0.1), "Adam", {"lr": 0.1, "weight_decay": 0.1, **ADAM}),
    (Adam(0.1, 0.8, 0.95, 1e-4, weight_decay=0.1, decoupled=True), "AdamW", {"lr": 0.1, "weight_decay": 0.1, **ADAM}),
    (AdamW(0.1, 0.8, 0.95, 1e-4, 0.2), "AdamW", {"lr": 0.1, "weight_decay": 0.2, **ADAM}),
    (AMSGrad(0.1, 0.8, 0.95, 1e-4), "Adam", {"lr": 0.1, "amsgrad": True, **ADAM}),
    (AMSGrad(0.1, 0.8, 0.95, 1e-4, weight_decay=0.1, decoupled=True), "AdamW",
     {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1, **ADAM}),
    (Adamax(0.1, 0.8, 0.95, 1e-4, weight_decay=0.1), "Adamax", {"lr": 0.1, "weight_decay": 0.1, **ADAM}),
    (NAdam(0.1, 0.8, 0.95, 1e-4, 0.01, weight_decay=0.1), "NAdam",
     {"lr": 0.1, "momentum_decay": 0.01, "weight_decay": 0.1, **ADAM}),
    (NAdam(0.1, 0.8, 0.95, 1e-4, weight_decay=0.1, decoupled=True), "NAdam",
     {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, **ADAM}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def double_by_default():
    """PyTorch keeps some of its state in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "name", "given"), PAIRS, ids=[f"{pair[1]} {pair[0]!r}" for pair in PAIRS])
def test_rows_equal_those_of_torch_optim(optimizer, name, given):
    """In float64: how near float32 comes, test_oracles.py says."""
    block = block_of(optimizer, "float64", DIM, ROWS)
    rows = torch.nn.Parameter(torch.tensor(block.embeddings()))
    theirs = getattr(torch.optim, name)([rows], **given)
    for step in range(STEPS):
        grads = np.random.default_rng(step).normal(size=(ROWS, DIM))
        CpuRows().apply(block, np.arange(ROWS), optimizer, grads, step, single(ROWS), 0)
        rows.grad = torch.tensor(grads)
        theirs.step()
    expected = rows.detach().numpy()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(block.embeddings(), expected, rtol=1e-12, atol=1e-12 * scale)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-9])
def test_sparse_adam_is_a_global_count_with_epsilon_hat(dtype, tolerance, size):
    """Where gradients are not much larger than epsilon, the place of epsilon decides the step."""
    given = {"beta_1": 0.8, "beta_2": 0.999, "epsilon": 1e-8, "bias_correction": "global"}
    ours, after = Adam(0.1, **given, epsilon_hat=True), Adam(0.1, **given)
    block, other = block_of(ours, dtype, DIM, ROWS), block_of(after, dtype, DIM, ROWS)
    rows = torch.nn.Parameter(torch.tensor(block.embeddings()))
    theirs = torch.optim.SparseAdam([rows], lr=0.1, betas=(0.8, 0.999), eps=1e-8)
    for step in range(1, STEPS):
        chance = np.random.default_rng(step)
        touched = np.sort(chance.permutation(ROWS)[: chance.integers(1, ROWS)])
        grads = (size * chance.normal(size=(len(touched), DIM))).astype(dtype)
        CpuRows().apply(block, touched, ours, grads, step, single(len(touched)), step)
        CpuRows().apply(other, touched, after, grads, step, single(len(touched)), step)
        rows.grad = torch.sparse_coo_tensor(touched[None], torch.tensor(grads), (ROWS, DIM), is_coalesced=True)
        theirs.step()
    expected = rows.detach().numpy()
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(block.embeddings(), expected, rtol=tolerance, atol=tolerance * scale)
    assert (np.abs(other.embeddings() - expected).max() > 0.1) == (size < 1)
